"""Memories: the same step by step and over sequences, empty at the start, and learning what must be remembered."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import A2C, DQN, IMPALA, R2D2, SAC, TD3, ConfigError, DiscreteSAC, RecurrentPPO, Transition, make
from fragmenta.algorithms.remembering import RecurrentInput
from fragmenta.rl.replay import empty_replay, insert_steps
from fragmenta.rl.returns import returns_to_go
from fragmenta.rl.sequences import Sequences, sample_sequences
from fragmenta.rl.value_targets import rescaled, returns_within, unscaled
from helpers import initial_state, plain
from own_parts import Leaky

CELLS = ("gru", "lstm", "transformer")


@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_is_remembered_as_its_steps_are(cell: str) -> None:
    env, algorithm = make("ProbeMemory"), RecurrentPPO(cell=cell, memory=8, window=3, num_envs=2, hidden=(8,))
    params = initial_state(algorithm, env).learner.params
    observation = jax.random.normal(jax.random.key(1), (5, 2, 1))
    ended = jnp.zeros((5, 2), bool).at[2, 0].set(True)
    memory, steps = algorithm.fresh_memory(2), []
    for time in range(5):
        memory, encoded = algorithm.remember(env, params, RecurrentInput(observation[time], memory))
        memory = jnp.where(ended[time][:, None], 0.0, memory)
        steps.append(encoded.actor)
    start = jnp.broadcast_to(algorithm.fresh_memory(2), (5, 2, memory.shape[-1]))
    together = algorithm.encode_all(env, params, RecurrentInput(observation, start, ended)).actor
    np.testing.assert_allclose(together, jnp.stack(steps), rtol=1e-5, atol=1e-6)


def test_a_transformer_looks_back_as_far_as_its_window() -> None:
    env, algorithm = make("ProbeMemory"), RecurrentPPO(cell="transformer", memory=8, window=3, num_envs=2, hidden=(8,))
    params = initial_state(algorithm, env).learner.params

    def last(first: float, steps: int) -> jax.Array:
        observation = jnp.zeros((steps, 1, 1)).at[0].set(first)
        inputs = RecurrentInput(observation, jnp.zeros((steps, 1, 25)), jnp.zeros((steps, 1), bool))
        return algorithm.encode_all(env, params, inputs).actor[-1]

    assert not np.allclose(last(1.0, 3), last(-1.0, 3))
    np.testing.assert_array_equal(last(1.0, 4), last(-1.0, 4))


def test_an_unknown_memory_is_one_line() -> None:
    with pytest.raises(ConfigError, match="cell is 'lstmm': choose from none, gru, lstm, transformer"):
        RecurrentPPO(cell="lstmm").validate(make("ProbeMemory"))


@pytest.mark.parametrize("kind", [SAC, TD3, DiscreteSAC, DQN])
def test_algorithms_without_a_memory_say_so(kind: Any) -> None:
    advice = "use r2d2" if kind is DQN else "its replay holds single steps; use ppo"
    with pytest.raises(ConfigError, match=f"cell is 'gru', but {kind.__name__} has no memory of the episode: {advice}"):
        kind(cell="gru").validate(make("Pendulum-v1" if kind in (SAC, TD3) else "CartPole-v1"))


@pytest.mark.parametrize("cell", [Leaky, "own_parts:Leaky", "flax.linen:OptimizedLSTMCell", nn.GRUCell(8)])
def test_a_cell_of_the_user(cell: Any) -> None:
    algorithm = A2C(cell=cell, memory=8, hidden=(8,))
    algorithm.validate(make("ProbeMemory"))
    state = jax.eval_shape(lambda key: algorithm.init(make("ProbeMemory"), key), jax.random.key(0))
    assert state.memory.shape == (8, 16 if "LSTM" in str(cell) else 8)


class Forgetful(Leaky):
    """Says that it remembers more than it does."""

    @property
    def size(self) -> int:
        return self.units + 1

    def __call__(self, memory: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return memory[..., 1:], memory[..., 1:]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("own_parts:Gelu", "cell 'own_parts:Gelu' is Gelu, not a cell of Flax, or a Flax module with a size"),
        ("own_parts:WithoutUnits", r"'own_parts:WithoutUnits': wrong arguments: WithoutUnits\(\) takes no arguments"),
        ("own_parts:halved", "cell 'own_parts:halved' is function, not a cell of Flax"),
        ("own_parts:DroppingCell", "cell 'own_parts:DroppingCell' draws random numbers, as Dropout does"),
        ("own_parts:NormedCell", "cell 'own_parts:NormedCell' keeps batch_stats besides its parameters"),
        (Forgetful, r"cell 'Forgetful' returns \(2, 8\) and \(2, 8\) for 2 rows: expected the memory, \(2, 9\)"),
    ],
)
def test_an_unusable_cell_is_one_line(cell: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        A2C(cell=cell, memory=8).validate(make("ProbeMemory"))


@pytest.mark.brief("gru")
@pytest.mark.parametrize("cell", ["gru", "own_parts:Leaky"])
def test_whole_trajectories_recompute_the_memory_of_acting(cell: str) -> None:
    """Six steps end within an episode and contain a reset; the learner's policy is still the one that acted."""
    settings: dict[str, Any] = {"memory": 8, "hidden": (8,), "horizon": 6, "num_envs": 4, "cell": cell}
    algorithm = IMPALA(normalize_observations=True, **settings)
    _, metrics = plain(algorithm, make("ProbeMemory"), 4)
    assert [float(record["ratio"]) for record in metrics] == pytest.approx([1.0] * 4, abs=1e-6)


WHOLE = {"num_envs": 32, "horizon": 8, "learning_rate": 1e-2, "gamma": 0.9, "cell": "gru", "total_steps": 100_000}
SHORT = {"num_envs": 32, "horizon": 16, "minibatches": 2, "learning_rate": 5e-3, "gamma": 0.9, "total_steps": 25_000}
LEARNING: dict[str, dict[str, Any]] = {
    "ppo_lstm": SHORT,
    "ppo_transformer": SHORT,
    "r2d2": {"total_steps": 25_000},
    "a2c": WHOLE,
    "impala": WHOLE,
    "reinforce": {**WHOLE, "horizon": 16},
    "pqn": {**SHORT, "cell": "gru", "final_exploration": 0.0},
}


@pytest.mark.full
@pytest.mark.parametrize("name", LEARNING)
def test_what_must_be_remembered_is_learned(name: str) -> None:
    result = fragmenta.train(name, "ProbeMemory", **LEARNING[name])
    assert result.summary["return_mean"] > 0.8


def test_returns_within_a_sequence() -> None:
    flags = jnp.asarray([[False], [False], [True], [False]])
    steps = Transition((), jnp.zeros((4, 1)), jnp.asarray([[1.0], [2.0], [3.0], [4.0]]), flags, flags & False, ())
    value = jnp.full((4, 1), 10.0)
    assert returns_within(steps, value, 0.5, 1)[:, 0].tolist() == [6.0, 7.0, 3.0, 9.0]
    assert returns_within(steps, value, 0.5, 3)[:, 0].tolist() == [1 + 1 + 0.75, 2 + 1.5, 3.0, 9.0]
    total, is_whole = returns_to_go(steps, 0.5)
    assert total[:3, 0].tolist() == [2.75, 3.5, 3.0]
    assert is_whole[:, 0].tolist() == [True, True, True, False]
    cut = steps._replace(terminated=flags & False, truncated=flags)
    assert returns_within(cut, value, 0.5, 2)[2, 0] == 8.0, "a truncated step relies on the value after it"


def test_the_scale_of_values_has_an_inverse() -> None:
    values = jnp.asarray([-300.0, -1.0, 0.0, 0.5, 40.0])
    np.testing.assert_allclose(unscaled(rescaled(values)), values, rtol=1e-3, atol=1e-4)


def test_sequences_are_consecutive_steps_of_one_environment() -> None:
    def steps(first: int) -> Transition:
        number = jnp.arange(first, first + 5.0)[:, None] + jnp.asarray([0.0, 100.0])
        flag = jnp.zeros((5, 2), bool)
        return Transition(number[..., None], number, number, flag, flag, number[..., None])

    replay = empty_replay(jax.tree.map(lambda x: x[0], steps(0)), 12)
    for first in (0, 5, 10):
        replay = insert_steps(replay, steps(first))
    drawn = sample_sequences(replay, jax.random.split(jax.random.key(0)), 50, 4).steps.reward
    assert drawn.shape == (4, 50, 2)
    assert bool(jnp.all(jnp.diff(drawn, axis=0) == 1))
    assert set(np.unique(drawn[0, :, 0])) == set(range(3, 12)), "every start from which four steps are left"
    assert float(drawn[..., 1].min()) >= 103


def sequences(algorithm: R2D2) -> Sequences:
    """Sequences of one episode each, as acting stores them, with the memory after earlier steps."""
    span = algorithm.burn_in + algorithm.length
    observation, following = jax.random.normal(jax.random.key(1), (2, span, 3, 1))
    memory = jax.random.normal(jax.random.key(2), algorithm.fresh_memory(3).shape)
    flags = jnp.zeros((span, 3), bool)
    steps = Transition(observation, jnp.zeros((span, 3), jnp.int32), jnp.ones((span, 3)), flags, flags, following)
    return Sequences(steps, jnp.ones(3), jnp.zeros(3, jnp.int32), memory)


def test_a_burn_in_warms_up_the_memory_and_is_not_learned_from() -> None:
    env, algorithm = make("ProbeMemory"), R2D2(memory=8, hidden=(8,), burn_in=3, length=4, num_envs=3, batch_size=3)
    learner = initial_state(algorithm, env).learner
    batch = sequences(algorithm)

    def with_observation(observation: jax.Array) -> Sequences:
        return batch._replace(steps=batch.steps._replace(observation=observation))

    def loss(observation: jax.Array) -> jax.Array:
        return algorithm.gradient(env, learner, with_observation(observation), ())[1][1]["loss"]

    observation = batch.steps.observation
    sensitive = jax.grad(loss)(observation)
    np.testing.assert_array_equal(sensitive[:3], 0.0)
    assert np.all(np.any(sensitive[3:] != 0.0, axis=(1, 2)))
    assert not np.allclose(loss(observation), loss(observation.at[:3].set(0.0))), "but it warms up the memory"
    # The same gradient as from the memory that the burn-in ends with.
    first = RecurrentInput(observation[:3], (), batch.steps.terminated[:3])
    memory = algorithm.remember_on(env, learner.params, first, batch.memory)[0]
    rest = batch._replace(steps=jax.tree.map(lambda x: x[3:], batch.steps), memory=memory)
    without = dataclasses.replace(algorithm, burn_in=0).gradient(env, learner, rest, ())[0]
    for expected, actual in zip(
        jax.tree.leaves(without), jax.tree.leaves(algorithm.gradient(env, learner, batch, ())[0]), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
