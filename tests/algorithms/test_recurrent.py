"""A recurrent policy remembers observations until the end of the episode, and no longer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import A2C, PPO, RecurrentPPO, make
from fragmenta.algorithms.remembering import RecurrentInput
from fragmenta.rl import steps_of_chunks
from helpers import initial_state, plain

PROBE = {"num_envs": 32, "horizon": 16, "minibatches": 2, "learning_rate": 5e-3, "gamma": 0.9, "total_steps": 25_000}
GRU = RecurrentPPO(memory=16, hidden=(16,), **PROBE)
WHOLE = A2C(
    cell="gru", memory=16, hidden=(16,), num_envs=32, horizon=8, learning_rate=1e-2, gamma=0.9, total_steps=200_000
)


@pytest.mark.full
@pytest.mark.parametrize("algorithm", [GRU, WHOLE], ids=["ppo", "a2c"])
def test_remembers_an_observation(algorithm: Any) -> None:
    env, result = make("ProbeMemory"), fragmenta.train(algorithm, "ProbeMemory")
    assert result.summary["return_mean"] > 0.95
    memory = jnp.zeros((2, 16))
    for observation, steps_left in (
        (jnp.asarray([[1.0], [-1.0]]), 3),
        *((jnp.zeros((2, 1)), left) for left in (2, 1, 0)),
    ):
        memory, encoded = algorithm.remember(env, result.params, RecurrentInput(observation, memory))
        assert algorithm.value(result.params, encoded).tolist() == pytest.approx([0.9**steps_left] * 2, abs=0.1)
        policy = algorithm.policy(env, result.params, encoded)
    right = policy.log_prob(jnp.asarray([1, 0]))
    assert float(jnp.exp(right).min()) > 0.95


@pytest.mark.full
def test_without_memory_it_can_only_guess() -> None:
    assert abs(fragmenta.train(PPO(hidden=(16,), **PROBE), "ProbeMemory").summary["return_mean"]) < 0.3


@pytest.mark.full
def test_memory_is_reset_with_each_episode() -> None:
    # Episodes of four steps: after two steps none has ended, after four all have just restarted.
    algorithm, env = RecurrentPPO(num_envs=4, horizon=2, minibatches=1, memory=8, hidden=(8,)), make("ProbeMemory")
    state, iterate = initial_state(algorithm, env), jax.jit(lambda state: algorithm.iterate(env, state)[0])
    for forgotten in (False, True):
        state = iterate(state)
        assert state.memory.shape == (4, 8)
        assert bool(jnp.all(state.memory == 0)) == forgotten


@pytest.mark.full
def test_learning_recomputes_the_memory_of_acting() -> None:
    """Six steps end within an episode and contain a reset; with one update the policy is still the one that acted."""
    shape = {"num_envs": 4, "horizon": 6, "epochs": 1, "minibatches": 1, "memory": 8, "hidden": (8,)}
    algorithm = RecurrentPPO(normalize_observations=True, normalize_rewards=True, **shape)
    _, metrics = plain(algorithm, make("ProbeMemory"), 3)
    assert all(abs(float(record["kl"])) < 1e-6 for record in metrics)


def test_chunks_are_whole_and_in_order() -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    steps = np.asarray(steps_of_chunks(keys, 12, 3))
    assert steps.shape == (3, 4, 5)
    np.testing.assert_array_equal(np.diff(steps, axis=1), 1)
    np.testing.assert_array_equal(np.sort(steps[:, 0], axis=0), [[0] * 5, [4] * 5, [8] * 5])
    assert len({tuple(column) for column in steps[:, 0].T}) > 1, "every environment has an order of its own"


def test_bfloat16_keeps_the_memory_in_float32() -> None:
    algorithm, env = RecurrentPPO(compute="bfloat16"), make("ProbeMemory")
    state, _ = jax.eval_shape(lambda key: algorithm.iterate(env, algorithm.init(env, key)), jax.random.key(0))
    assert state.memory.dtype == jnp.float32
