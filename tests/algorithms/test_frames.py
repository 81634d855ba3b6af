"""Training from single frames equals training from whole stacks, wherever the replay is."""

from typing import Any

import jax
import numpy as np
import pytest

from fragmenta import DQN, EnvOptions, make
from fragmenta.algorithms.named import algorithm_class
from fragmenta.envs import Stack
from helpers import assert_same, cpu_cluster, initial_state, plain, planned, run_plan
from sights import BrightHalf

ALGORITHM = DQN(num_envs=4, horizon=3, hidden=(8,), buffer_size=240, batch_size=16, learning_starts=24, updates=2)
ITERATIONS = 40


def test_single_frames_train_the_same_parameters_as_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("CartPole-v1", options=EnvOptions(stack=4))
    frames = plain(ALGORITHM, env, ITERATIONS)[0]
    monkeypatch.setattr(Stack, "stacks_frames", False)
    stacks = plain(ALGORITHM, env, ITERATIONS)[0]
    jax.tree.map(np.testing.assert_array_equal, stacks.learner.params, frames.learner.params)
    held, whole = (sum(x.nbytes for x in jax.tree.leaves(state.replay)) for state in (frames, stacks))
    assert held < whole / 2


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_single_frames_cross_to_the_replay(name: str) -> None:
    env = make("CartPole-v1", options=EnvOptions(stack=4))
    settings: dict[str, Any] = {"num_envs": 4, "horizon": 3, "buffer_size": 240, "batch_size": 16, "hidden": (8,)}
    settings |= {"burn_in": 1, "length": 2, "memory": 1} if name == "r2d2" else {}
    algorithm = algorithm_class(name)(**settings)
    plan = planned(algorithm, env, "replay", cpu_cluster(1, 1), merge=False)
    crossing = [interface.value for interface in plan.interfaces if interface.consumer == "replay"]
    assert max(value.bytes for value in crossing) == 3 * 4 * 4 * 4, "steps, environments, numbers of four bytes"


@pytest.mark.full
def test_pictures_are_stored_once_and_train_the_same_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    once = plain(ALGORITHM, BrightHalf(), 12)[0]
    monkeypatch.setattr(DQN, "stored_stack", lambda *_: 0)
    twice = plain(ALGORITHM, BrightHalf(), 12)[0]
    jax.tree.map(np.testing.assert_array_equal, twice.learner.params, once.learner.params)
    assert int(once.learner.updates) > 0
    assert once.replay.steps.observation.newest.nbytes < 1.1 * twice.replay.steps.observation.nbytes


@pytest.mark.full
@pytest.mark.parametrize("policy", ["single_learner_coarse", "central", "multi_learner", "replay"])
def test_replicas_insert_and_sample_frames_alone(policy: str) -> None:
    env = make("CartPole-v1", options=EnvOptions(stack=4))
    plan = planned(ALGORITHM, env, policy, cpu_cluster(4, 2), merge=False)
    state, _ = run_plan(plan, ALGORITHM, env, ITERATIONS)
    assert_same(plain(ALGORITHM, env, ITERATIONS)[0], state, 1e-4)
    frames = initial_state(ALGORITHM, env).replay.steps.observation.newest.nbytes
    others = [interface for interface in plan.interfaces if interface.producer != "replay"]  # which sends batches
    assert all(interface.value.bytes < frames / 4 for interface in others), "the replay stays where it is"
