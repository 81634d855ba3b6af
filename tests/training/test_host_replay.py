"""A replay in host memory, or filled from environments on the host: where its shards are, and that nothing else
changes. Numbers of shards and learners are those of the run, also when it is resumed."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fragmenta
from fragmenta import DQN, PPO, Cluster, ConfigError, Fragment, RunOptions, SaveOptions, make, project, trace
from fragmenta.cli.main import main
from fragmenta.policies import resolve
from fragmenta.runs.run_directory import read_config
from fragmenta.training.retrace import plan_of
from helpers import assert_same, cpu_cluster, plain, planned, run_plan

SMALL = DQN(
    num_envs=4,
    horizon=4,
    batch_size=16,
    buffer_size=256,
    learning_starts=64,
    updates=2,
    hidden=(8,),
    prioritized=True,
    total_steps=320,
    anneal=False,
    exploration_share=0.0,  # nothing depends on the length of the run
    importance=1.0,
)
GRAPH = trace(SMALL, make("CartPole-v1"))


def devices(policy: str, cluster: Cluster, merge: bool) -> dict[str, tuple[str, ...]]:
    plan = project(GRAPH, policy, dataclasses.replace(cluster, replay="host"), merge)
    return {program.fragment.name: program.fragment.devices for program in plan.programs}


@pytest.mark.parametrize("policy", ["replay", "replay_async"])
def test_shards_are_on_the_cpu_beside_accelerators(policy: str) -> None:
    five = tuple(f"gpu:{i}" for i in range(5))
    others = {"actor": ("gpu:1", "gpu:2"), "learner": ("gpu:0",)}
    in_one_process, apart = (Cluster(five, 2, apart=apart) for apart in (False, True))
    assert devices(policy, in_one_process, merge=False) == others | {"replay": ("cpu:0", "cpu:0")}
    assert devices(policy, apart, merge=False) == others | {"replay": ("cpu:3", "cpu:4")}, "memory of every process"


def test_with_one_accelerator_only_the_shards_are_elsewhere() -> None:
    assert devices("replay", Cluster(("gpu:0",), 2), merge=True) == {"actor+learner": ("gpu:0",), "replay": ("cpu:0",)}


def test_devices_of_a_cpu_have_host_memory_already() -> None:
    five = cpu_cluster(5, 2)
    plan = project(GRAPH, "replay", five)
    assert devices("replay", five, True) == {
        program.fragment.name: program.fragment.devices for program in plan.programs
    }


def as_with_one_accelerator(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """The placement beside one accelerator, with another CPU device in place of that one."""
    placed = resolve("replay")(stages, dataclasses.replace(cluster, devices=("gpu:0",), replay="host"))
    renamed = {"gpu:0": "cpu:1", "cpu:0": "cpu:0"}
    return [dataclasses.replace(part, devices=tuple(renamed[name] for name in part.devices)) for part in placed]


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_placement_beside_an_accelerator_computes_the_same(replicas: int) -> None:
    env = make("CartPole-v1")
    plan = planned(SMALL, env, as_with_one_accelerator, cpu_cluster(2, replicas), merge=True)
    assert [program.fragment.name for program in plan.programs] == ["actor+learner", "replay"]
    assert_same(plain(SMALL, env, 10)[0], run_plan(plan, SMALL, env, 10)[0], 0)


def trained(replay: str, run: Path | None = None, steps: int = 320, **saving: Any) -> fragmenta.Result:
    cluster = dataclasses.replace(cpu_cluster(3, 1), replay=replay)
    settings = {"cluster": cluster, "total_steps": steps, "options": RunOptions(saving=SaveOptions(**saving))}
    return fragmenta.train(SMALL, "CartPole-v1", policy="replay", run_dir=run, progress=False, **settings)


def assert_equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get((x.params, x.state.replay)) for x in (one, other)))


def test_a_replay_in_host_memory_changes_nothing(tmp_path: Path) -> None:
    assert_equal(trained("device"), trained("host", tmp_path / "run"))
    assert read_config(tmp_path / "run")["replay"] == "host"


@pytest.mark.full
@pytest.mark.parametrize("save_replay", [True, False])
def test_a_run_resumes_with_its_replay_in_host_memory(save_replay: bool, tmp_path: Path) -> None:
    resumed = []
    for replay in ("device", "host"):
        trained(replay, tmp_path / replay, 160, save_replay=save_replay)
        resumed.append(fragmenta.resume(tmp_path / replay, total_steps=320, progress=False))
        assert read_config(tmp_path / replay)["replay"] == replay
    assert_equal(*resumed)
    if save_replay:
        assert_equal(trained("device"), resumed[1])


@pytest.mark.parametrize(
    ("algorithm", "policy", "replay", "message"),
    [
        (SMALL, "fused", "host", "distribution policy 'fused' keeps the replay on gpu:0: use replay or replay_async"),
        (SMALL, "single_learner_coarse", "host", "keeps the replay on gpu:0"),
        (PPO(num_envs=4), "fused", "host", "this algorithm has no replay"),
        (SMALL, "replay", "disk", "replay is 'disk': choose device or host"),
    ],
)
def test_what_cannot_be_in_host_memory_is_refused(algorithm: Any, policy: str, replay: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        project(trace(algorithm, make("CartPole-v1")), policy, Cluster(("gpu:0",), replay=replay))
    assert "\n" not in str(caught.value)


def test_shards_of_environments_on_the_host_equal_the_plain_program() -> None:
    env = make("gymnasium:CartPole-v1")
    with env.opened():
        expected = plain(SMALL, env, 6)[0]
    cluster = dataclasses.replace(cpu_cluster(5, 2), shards=1, learners=2)
    plan = planned(SMALL, env, "replay", cluster, merge=False)
    with env.opened(2):
        assert_same(expected, run_plan(plan, SMALL, env, 6)[0], 1e-5)


def test_a_run_resumes_with_its_shards_and_learners(tmp_path: Path) -> None:
    cluster = dataclasses.replace(cpu_cluster(6, 2), shards=1, learners=2)
    run, options = tmp_path / "run", RunOptions(merge=False)
    fragmenta.train(
        SMALL, "CartPole-v1", policy="replay", cluster=cluster, run_dir=run, options=options, total_steps=64
    )
    assert {name: read_config(run)[name] for name in ("replicas", "shards", "learners")} == {
        "replicas": 2,
        "shards": 1,
        "learners": 2,
    }
    fragmenta.resume(run, total_steps=96, progress=False)
    opened = fragmenta.load(run)
    counts = {program.fragment.name: program.fragment.replicas for program in plan_of(opened).programs}
    assert counts == {"actor": 2, "replay": 1, "learner": 2}
    assert main(["resume", str(run), "--total-steps", "128", "--shards", "0"]) == 2
