"""Algorithms support the spaces of environments, or refuse them in one line."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fragmenta
from fragmenta import (
    A2C,
    DQN,
    IMPALA,
    MAPPO,
    PPO,
    R2D2,
    SAC,
    Box,
    ConfigError,
    Dict,
    Discrete,
    DiscreteSAC,
    MultiDiscrete,
)
from fragmenta.algorithms import ALGORITHMS
from fragmenta.envs.probes import Probe, ProbeTeam
from sights import BrightHalf, Medley


@pytest.mark.full
def test_learns_from_images() -> None:
    algorithm = PPO(num_envs=32, horizon=8, minibatches=2, epochs=2, hidden=(), total_steps=4_000)
    result = fragmenta.train(algorithm, BrightHalf())
    assert result.summary["return_mean"] > 0.9
    assert set(result.params) == {"encoder", "policy", "value"}


@pytest.mark.full
def test_learns_several_integers_from_a_dictionary() -> None:
    algorithm = PPO(num_envs=32, horizon=8, minibatches=2, gamma=0.0, learning_rate=3e-3, hidden=(), total_steps=5_000)
    result = fragmenta.train(algorithm, Medley())
    assert result.summary["return_mean"] > 0.6 * Medley().max_steps


@pytest.mark.parametrize("algorithm", [A2C, IMPALA])
def test_other_algorithms_support_these_spaces(algorithm: Any) -> None:
    sized, env = algorithm(num_envs=4, horizon=4, normalize_observations=True), Medley(continuous=True)
    state, _ = jax.eval_shape(lambda key: sized.iterate(env, sized.init(env, key)), jax.random.key(0))
    assert state.learner.params["log_std"].shape == (2, 1)
    assert state.normalizer.observation["inner"]["grid"].mean.shape == (2, 2)


@dataclasses.dataclass(frozen=True)
class Odd(Probe):
    """Has any action space."""

    offered: Any = None

    @property
    def action_space(self) -> Any:
        return self.offered


@pytest.mark.parametrize("space", [Dict((("a", Discrete(2)),)), Box(0, 9, (2,), "int32")])
def test_unsupported_action_spaces_are_refused(space: Any) -> None:
    with pytest.raises(ConfigError, match="PPO does not support action space"):
        fragmenta.trace(PPO(), Odd(offered=space))


@pytest.mark.parametrize("kind", [DQN, R2D2, SAC, DiscreteSAC])
def test_a_refusal_names_an_algorithm_that_takes_the_actions(kind: Any) -> None:
    for space in (Discrete(2), Box(-1.0, 1.0, (2,)), MultiDiscrete((2, 3))):
        try:
            kind().validate(Odd(offered=space))
        except ConfigError as error:
            other = str(error).rpartition("; use ")[2]
            ALGORITHMS[other]().validate(Odd(offered=space))


@dataclasses.dataclass(frozen=True)
class Grids(ProbeTeam):
    """Every agent observes a small grid."""

    @property
    def observation_space(self) -> Box:
        return Box(-1, 1, (2, 2))

    def observe(self, state: Any) -> jax.Array:
        return jnp.ones((2, 2)) * super().observe(state)[:, :1, None]


def test_agents_may_observe_arrays_of_any_shape() -> None:
    assert fragmenta.trace(MAPPO(), Grids())
