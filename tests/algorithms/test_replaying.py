"""What algorithms do with their replay: when they begin to learn from it, and what they get out of it."""

from typing import Any

import jax
import numpy as np
import pytest

from fragmenta import DQN, R2D2, SAC, Environment, make
from fragmenta.envs import Stack
from fragmenta.tracing.iteration import iteration
from helpers import initial_state
from sights import BrightHalf, Medley

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 1, "batch_size": 8, "buffer_size": 64, "updates": 2, "hidden": (8,)}
SEQUENCES: dict[str, Any] = {"burn_in": 2, "length": 4, "memory": 4}


@pytest.mark.parametrize(
    ("algorithm", "env", "span"),
    [
        pytest.param(DQN(learning_starts=0, n_step=5, prioritized=True, **SMALL), "CartPole-v1", 5, id="n-step"),
        pytest.param(R2D2(learning_starts=0, prioritized=True, **SEQUENCES, **SMALL), "ProbeMemory", 6, id="sequences"),
    ],
)
def test_nothing_is_learned_before_a_whole_span_is_there(algorithm: Any, env: str, span: int) -> None:
    environment = make(env)
    iterate, state = jax.jit(iteration(algorithm, environment)), initial_state(algorithm, environment)
    for count in range(1, span + 4):
        state, metrics = iterate(state)
        learned = max(0, count - span + 1)
        assert int(state.learner.updates) == 2 * learned
        assert float(metrics["replay_ratio"]) == pytest.approx(learned / count * 2 * 8 / 4)
        priorities = np.asarray(state.replay.priorities.rows)
        assert (priorities > 0).tolist() == [[row < learned for row in range(priorities.shape[1])]] * 4


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        pytest.param(DQN(**SMALL), BrightHalf(), id="picture"),
        pytest.param(DQN(**SMALL), Stack(BrightHalf(), 2), id="stack"),
        pytest.param(R2D2(**SEQUENCES, **SMALL), Stack(BrightHalf(), 2), id="sequences"),
        pytest.param(SAC(**SMALL), Medley(continuous=True), id="dictionary"),
    ],
)
def test_bytes_are_stored_and_sampled_as_bytes(algorithm: Any, env: Environment) -> None:
    def drawn(key: jax.Array) -> Any:
        state = algorithm.init(env, key)
        return state.replay, algorithm.sample(state.replay, state.keys, 0.0)

    replay, batches = jax.eval_shape(drawn, jax.random.key(0))
    sampled = getattr(batches, "steps", batches)
    for observations in (replay.steps.observation, sampled.observation, sampled.next_observation):
        pictures = [x for x in jax.tree.leaves(observations) if x.shape[-3:] in ((6, 8, 1), (2, 6, 6))]
        assert pictures
        assert {str(picture.dtype) for picture in pictures} == {"uint8"}
