"""Fragments in separate processes equal the plain program, and any engine can resume their checkpoints."""

import time
from pathlib import Path
from typing import Any

import jax
import pytest

import fragmenta
from fragmenta import IMPALA, PPO, Cluster, RunOptions, make
from fragmenta.engines import ENGINES
from fragmenta.runs.saving import SaveOptions
from fragmenta.training.stopping import StoppedError
from helpers import StopAt, assert_same, initial_state
from processes import apart, run_apart
from test_equivalence import CASES, ITERATIONS, expected, policies_for

SHORT = (
    ("ppo-cartpole", "single_learner_coarse", 2),  # gathers and broadcasts
)
"""The cases of `make test`; few, because every process takes seconds to start."""


def matrix() -> list[Any]:
    """Every algorithm under every distribution policy with 1 and 2 replicas."""
    return [
        pytest.param(*each, marks=() if each in SHORT else pytest.mark.full, id="-".join(map(str, each)))
        for case in CASES
        for policy in policies_for(case)
        for replicas in (1, 2)
        for each in [(case, policy, replicas)]
    ]


def compare(case: str, policy: str, replicas: int, engine: str) -> None:
    algorithm, env = CASES[case][0], make(CASES[case][1])
    state, metrics = run_apart(apart(algorithm, env, policy, replicas), engine, ITERATIONS)
    expected_state, expected_metrics = expected(case)
    # Not bitwise even with one replica: a process has a different number of devices, and XLA of threads.
    assert_same(expected_state, state, 1e-5)
    assert_same(expected_metrics, metrics, 1e-4, floor=0.1)


@pytest.mark.parametrize(("case", "policy", "replicas"), matrix())
def test_processes_equal_the_plain_program(case: str, policy: str, replicas: int) -> None:
    compare(case, policy, replicas, "processes")


def test_a_local_ray_equals_the_plain_program() -> None:
    compare("ppo-cartpole", "single_learner_coarse", 1, "ray")


@pytest.mark.full
def test_it_ends_although_an_actor_is_ahead_of_the_learner() -> None:
    algorithm, env = IMPALA(num_envs=8, horizon=8, hidden=(8,)), make("CartPole-v1")
    with ENGINES["processes"](apart(algorithm, env, "single_learner_async", 1)) as engine:
        engine.begin(jax.tree.leaves(initial_state(algorithm, env)))
        list(engine.run(1))
        time.sleep(3.0)  # the actor now waits until the learner takes what it has collected
        ending = time.monotonic()
        engine.finish()
    assert time.monotonic() - ending < 20, "it ended only after the deadline"


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "second"), [("processes", "local"), pytest.param("local", "processes", marks=pytest.mark.full)]
)
def test_another_engine_resumes_a_checkpoint(first: str, second: str, tmp_path: Path) -> None:
    algorithm = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=10 * 32)
    policy, cluster = "single_learner_coarse", Cluster(("cpu:0", "cpu:1", "cpu:2"), 2)
    whole = fragmenta.train(algorithm, "CartPole-v1", policy, cluster=cluster)
    with pytest.raises(StoppedError):
        fragmenta.train(
            algorithm,
            "CartPole-v1",
            policy,
            first,
            cluster=cluster,
            run_dir=tmp_path / "run",
            watcher=StopAt(4),
            options=RunOptions(
                saving=SaveOptions(1)
            ),  # a checkpoint at each iteration, so that it stops at exactly that one
        )
    resumed = fragmenta.resume(tmp_path / "run", policy, cluster, engine=second)
    assert len(resumed.metrics) == 6
    assert_same(whole.params, resumed.params, 1e-5)
