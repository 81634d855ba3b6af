"""Probe environments: so small that the right value is known, each failing for one kind of mistake only."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs.base import Box, Discrete, Environment


class ProbeState(NamedTuple):
    """All that a probe knows: the number it shows."""

    shown: jax.Array


@dataclasses.dataclass(frozen=True)
class Probe(Environment):
    """What the probes share: they show one number and offer two actions."""

    max_steps: int = 1_000

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (1,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def initial(self, key: jax.Array) -> ProbeState:
        return ProbeState(jnp.zeros(()))

    def observe(self, state: ProbeState) -> jax.Array:
        return jnp.stack(state)


@dataclasses.dataclass(frozen=True)
class ProbeConstant(Probe):
    """One step, reward 1. Value 1: the value loss and the optimizer work."""

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return state, jnp.ones(()), jnp.ones((), bool)


@dataclasses.dataclass(frozen=True)
class ProbeObservation(Probe):
    """One step, shows -1 or 1 and pays it. Value = observation: gradients reach the input."""

    def initial(self, key: jax.Array) -> ProbeState:
        return ProbeState(_random_sign(key))

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return state, state.shown, jnp.ones((), bool)


@dataclasses.dataclass(frozen=True)
class ProbeDiscount(Probe):
    """Two steps, shows 0 then 1, pays 1 at the end. Values gamma and 1: rewards travel back in time."""

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return ProbeState(jnp.ones(())), state.shown, state.shown == 1


@dataclasses.dataclass(frozen=True)
class ProbeAction(Probe):
    """One step, shows -1 or 1, pays 1 for the action of that sign and -1 for the other. Value 1: the policy learns."""

    def initial(self, key: jax.Array) -> ProbeState:
        return ProbeState(_random_sign(key))

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return state, jnp.where((action == 1) == (state.shown > 0), 1.0, -1.0), jnp.ones((), bool)


@dataclasses.dataclass(frozen=True)
class ProbeTruncation(Probe):
    """Pays 1 forever, truncated every second step. Value 1 / (1 - gamma): truncation is not the end of the world."""

    max_steps: int = 2

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return state, jnp.ones(()), jnp.zeros((), bool)


def _random_sign(key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
