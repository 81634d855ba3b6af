"""The central test: any placement gives what the plain program gives."""

from functools import cache
from typing import Any

import pytest

from fragmenta import PPO, Fragment, make
from helpers import assert_same, cpu_cluster, plain, planned, run_plan
from odd_algorithm import Odd

POLICIES = ("fused", "single_learner_coarse", "single_learner_fine")
ITERATIONS = 10
CASES = {
    "ppo-cartpole": (PPO(num_envs=8, horizon=16, total_steps=100_000, hidden=(16, 16)), "CartPole-v1"),
    "ppo-pendulum": (
        PPO(num_envs=8, horizon=16, total_steps=100_000, hidden=(16, 16), clip_value=True),
        "Pendulum-v1",
    ),
    "odd": (Odd(num_envs=8), "CartPole-v1"),
}


@cache
def expected(case: str) -> tuple[Any, list[dict[str, Any]]]:
    algorithm, env = CASES[case]
    return plain(algorithm, make(env), ITERATIONS)


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "apart"])
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", CASES)
def test_every_policy_equals_the_plain_program(case: str, policy: str, replicas: int, merge: bool) -> None:
    algorithm, env = CASES[case][0], make(CASES[case][1])
    # On one device everything that is merged is one program; on several, the replicas have a device each.
    plan = planned(algorithm, env, policy, cpu_cluster(1 if merge else 5, replicas), merge)
    state, metrics = run_plan(plan, algorithm, env, ITERATIONS)
    expected_state, expected_metrics = expected(case)
    same_programs = replicas == 1 or merge
    assert_same(expected_state, state, 0 if same_programs else 1e-5)
    # A loss is a small difference of large terms, so its rounding is relative to those.
    assert_same(expected_metrics, metrics, 0 if same_programs else 1e-4, floor=0.1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("devices", [1, 3])
def test_replicas_that_share_devices(policy: str, devices: int) -> None:
    algorithm, env = CASES["ppo-cartpole"][0], make("CartPole-v1")
    plan = planned(algorithm, env, policy, cpu_cluster(devices, 2), merge=devices > 1)
    state, _ = run_plan(plan, algorithm, env, ITERATIONS)
    assert_same(expected("ppo-cartpole")[0], state, 1e-5)


def learner_in_two(stages: tuple[str, ...], cluster: Any) -> list[Fragment]:
    """A user's own policy that looks into `learn`."""
    return [
        Fragment("actor", ("act", "step"), ("cpu:0",)),
        Fragment("gradients", ("gradient",), ("cpu:1",)),
        Fragment("parameters", ("apply",), ("cpu:2",)),
    ]


def test_nested_stages_can_be_placed() -> None:
    algorithm, env = CASES["ppo-cartpole"][0], make("CartPole-v1")
    plan = planned(algorithm, env, learner_in_two, cpu_cluster(3, 1), merge=True)
    assert [program.fragment.stages for program in plan.programs] == [("act", "step"), ("gradient",), ("apply",)]
    state, _ = run_plan(plan, algorithm, env, 3)
    assert_same(plain(algorithm, env, 3)[0], state, 1e-5)
