"""A replay that stays in place, because it is large: nothing copies it that need not, and training is the same."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fragmenta
from fragmenta import DQN, RunOptions, SaveOptions, make, project, trace
from fragmenta.engines import ENGINES, Engine, LocalEngine, Setup
from fragmenta.engines.cluster import ClusterEngine
from fragmenta.engines.in_place import in_place
from fragmenta.engines.initial import initial_state
from fragmenta.engines.processes import ProcessLauncher
from fragmenta.runs.checkpoints import CheckpointFolder
from fragmenta.runs.state import to_arrays
from helpers import cpu_cluster

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


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replay counts as large."""
    monkeypatch.setattr("fragmenta.engines.in_place.IN_PLACE_BYTES", 0)


def trained(
    run: Path | None, steps: int, policy: str = "replay", engine: str = "local", **saving: Any
) -> fragmenta.Result:
    options = RunOptions(saving=SaveOptions(**saving), merge=False)
    settings = {"total_steps": steps, "options": options, "progress": False, "engine": engine}
    settings["cluster"] = cpu_cluster(5, 2)
    return fragmenta.train(SMALL, "CartPole-v1", policy=policy, run_dir=run, **settings)


def engine_with_shapes(policy: str) -> tuple[Engine, list[Any], Any]:
    env, cluster = make("CartPole-v1"), cpu_cluster(5, 2)
    plan = project(trace(SMALL, env), policy, cluster, merge=False)
    state = initial_state(SMALL, env, jax.random.key(0), in_place=in_place(plan.graph))
    return ENGINES["local"](Setup(plan, SMALL, env, policy, cluster, merge=False)), *jax.tree.flatten(state)


@pytest.mark.usefixtures("large")
def test_shards_make_their_empty_parts_where_they_are() -> None:
    engine, leaves, structure = engine_with_shapes("replay")
    assert isinstance(jax.tree.unflatten(structure, leaves).replay.steps.reward, jax.ShapeDtypeStruct)
    with engine:
        engine.begin(leaves)
        assert isinstance(engine, LocalEngine)
        held = [w.state() for w in engine._workers if w.deployment.schedule.program.fragment.name == "replay"]
        assert [leaf.devices() for leaf in held[1].values()] == [{jax.devices()[4]}] * len(held[1])
        whole = jax.tree.unflatten(structure, engine.state()).replay
    expected = jax.jit(lambda key: SMALL.init(make("CartPole-v1"), key))(jax.random.key(0)).replay
    jax.tree.map(np.testing.assert_array_equal, expected, whole)


@pytest.mark.usefixtures("large")
def test_free_running_shards_copy_all_but_the_replay() -> None:
    engine, leaves, structure = engine_with_shapes("replay_async")
    with engine:
        engine.begin(leaves)
        assert isinstance(engine, LocalEngine)
        for _ in engine.run(8):
            pass
        names = engine.plan.graph.state_names
        copied = {names[i] for worker in engine._workers for i in worker.state_copy}
        assert copied
        assert not [name for name in copied if name.startswith("replay")]
        assert min(jax.tree.unflatten(structure, engine.state()).replay.filled) > 0, "while its worker goes on"
        engine.finish()
        replay = jax.tree.unflatten(structure, engine.state()).replay
    assert isinstance(replay.steps.reward, np.ndarray), "joined in host memory"
    assert np.abs(replay.steps.observation[: min(replay.filled)]).max(axis=(0, 2)).all(), "the steps of all"


def test_the_size_of_a_replay_does_not_change_what_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = trained(None, 320)
    monkeypatch.setattr("fragmenta.engines.in_place.IN_PLACE_BYTES", 0)
    result = trained(tmp_path / "run", 320)
    assert result.summary["params_sha256"] == small.summary["params_sha256"]
    assert small.state.replay.steps.reward.shape == (64, 4)
    assert jax.tree.leaves(result.state.replay) == [], "a large one is not brought together at the end"


@pytest.mark.full
@pytest.mark.parametrize("policy", ["replay", "single_learner_coarse"])
def test_a_run_goes_on_exactly_with_a_large_replay_that_was_saved(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(None, 320, policy)
    monkeypatch.setattr("fragmenta.engines.in_place.IN_PLACE_BYTES", 0)
    trained(tmp_path / "run", 160, policy, save_replay=True)
    resumed = fragmenta.resume(tmp_path / "run", total_steps=320, progress=False)
    assert resumed.summary["params_sha256"] == whole.summary["params_sha256"]
    arrays = CheckpointFolder(tmp_path / "run" / "checkpoints").newest().arrays
    for name, array in to_arrays(whole.state).items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)


@pytest.mark.full
@pytest.mark.parametrize("limit", [0, 1 << 28])
def test_processes_save_their_replay(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(None, 320)
    monkeypatch.setattr("fragmenta.engines.in_place.IN_PLACE_BYTES", limit)
    trained(tmp_path / "run", 160, save_replay=True, engine="processes")
    resumed = fragmenta.resume(tmp_path / "run", total_steps=320, progress=False)
    assert resumed.summary["engine"] == "processes"
    assert resumed.summary["params_sha256"] == whole.summary["params_sha256"]


@pytest.mark.full
@pytest.mark.usefixtures("large")
def test_shards_are_joined_in_order_whichever_process_connects_first() -> None:
    env, cluster = make("CartPole-v1"), dataclasses.replace(cpu_cluster(5, 2), apart=True)
    plan = project(trace(SMALL, env), "replay", cluster, merge=False)
    state = jax.jit(lambda key: SMALL.init(env, key))(jax.random.key(0))
    numbers = np.random.default_rng(0).random(state.replay.steps.observation.shape, np.float32)
    steps = state.replay.steps._replace(observation=jax.numpy.asarray(numbers))
    leaves, structure = jax.tree.flatten(state._replace(replay=state.replay._replace(steps=steps)))
    with ClusterEngine(Setup(plan, SMALL, env, "replay", cluster, merge=False), ProcessLauncher()) as engine:
        engine.begin(leaves)
        engine._crew.peers = dict(sorted(engine._crew.peers.items(), reverse=True))
        joined = jax.tree.unflatten(structure, engine.state()).replay.steps.observation
    np.testing.assert_array_equal(joined, numbers)


@pytest.mark.usefixtures("large")
def test_a_large_replay_that_is_saved_is_copied_only_when_a_checkpoint_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    collect = LocalEngine.state
    monkeypatch.setattr(LocalEngine, "state", lambda self, without=(): copies.append(1) or collect(self, without))
    monkeypatch.setattr("fragmenta.training.log.STRETCH_SECONDS", 1e-3)
    monkeypatch.setattr("fragmenta.training.log.COPY_SHARE", 1e9)
    trained(tmp_path / "run", 640, save_replay=True, checkpoint_every=20)
    assert len(copies) == 3, "after iterations 20 and 40, and for the result"


def test_shapes_are_no_part_of_a_checkpoint() -> None:
    shape = jax.ShapeDtypeStruct((3,), "float32")
    assert list(to_arrays({"a": np.zeros(2), "b": shape})) == ["a"]
