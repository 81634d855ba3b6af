"""Probe environments, so small that the correct value is known; each detects one kind of bug."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs.base import Environment
from fragmenta.envs.team import TeamEnvironment
from fragmenta_core.spaces import Box, Dict, Discrete, Space


class ProbeState(NamedTuple):
    """The number that is observed."""

    number: jax.Array


@dataclasses.dataclass(frozen=True)
class Probe(Environment):
    """Base class of the probes: the observation is one number, and there are two actions."""

    max_steps: int = 1_000

    @property
    def observation_space(self) -> Space:
        return Box(-1.0, 1.0, (1,))

    @property
    def action_space(self) -> Space:
        return Discrete(2)

    def initial(self, key: jax.Array) -> Any:
        return ProbeState(jnp.zeros(()))

    def observe(self, state: Any) -> Any:
        return jnp.stack(state)


@dataclasses.dataclass(frozen=True)
class ProbeConstant(Probe):
    """One step, reward 1. Value 1: the value loss and the optimizer work."""

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return state, jnp.ones(()), jnp.ones((), bool)


@dataclasses.dataclass(frozen=True)
class ProbeObservation(Probe):
    """One step, observation -1 or 1, which is also the reward. Value = observation: gradients reach the input."""

    def initial(self, key: jax.Array) -> ProbeState:
        return ProbeState(_random_sign(key))

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return state, state.number, jnp.ones((), bool)


@dataclasses.dataclass(frozen=True)
class ProbeDiscount(Probe):
    """Two steps, observations 0 then 1, reward 1 at the end. Values gamma and 1: rewards propagate back in time."""

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return ProbeState(jnp.ones(())), state.number, state.number == 1


@dataclasses.dataclass(frozen=True)
class ProbeAction(Probe):
    """One step, observation -1 or 1, reward 1 for the action of that sign, else -1. Value 1: the policy learns."""

    def initial(self, key: jax.Array) -> ProbeState:
        return ProbeState(_random_sign(key))

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return state, jnp.where((action == 1) == (state.number > 0), 1.0, -1.0), jnp.ones((), bool)


@dataclasses.dataclass(frozen=True)
class ProbeTruncation(Probe):
    """Reward 1 forever, truncated every second step. Value 1 / (1 - gamma): truncation is not termination."""

    max_steps: int = 2

    def advance(self, state: ProbeState, action: jax.Array, key: jax.Array) -> tuple[ProbeState, jax.Array, jax.Array]:
        return state, jnp.ones(()), jnp.zeros((), bool)


class ProbeTargetState(NamedTuple):
    """The number that the action should be, and steps taken in this episode."""

    target: jax.Array
    time: jax.Array


@dataclasses.dataclass(frozen=True)
class ProbeTarget(Probe):
    """Two steps; the reward is 1 minus the squared distance of a continuous action from the number observed.

    Values 1 + gamma and 1, for that number as the action: actions are scaled, and the actor follows the critic.
    """

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (2,))

    @property
    def action_space(self) -> Box:
        return Box(-2.0, 2.0, (1,))

    def initial(self, key: jax.Array) -> ProbeTargetState:
        return ProbeTargetState(_random_sign(key), jnp.zeros(()))

    def advance(
        self, state: ProbeTargetState, action: jax.Array, key: jax.Array
    ) -> tuple[ProbeTargetState, jax.Array, jax.Array]:
        reward = 1.0 - (action[0] - state.target) ** 2
        return ProbeTargetState(_random_sign(key), state.time + 1.0), reward, state.time == 1


class ProbeMemoryState(NamedTuple):
    """Steps taken in this episode, and the sign of the first observation."""

    time: jax.Array
    sign: jax.Array


@dataclasses.dataclass(frozen=True)
class ProbeMemory(Probe):
    """First observation -1 or 1, then 0; the reward is 1 if the last action has that sign, else -1.

    Value gamma^(steps left): the first observation is remembered, and only until the episode ends.
    """

    blanks: int = 3

    def initial(self, key: jax.Array) -> ProbeMemoryState:
        return ProbeMemoryState(jnp.zeros((), jnp.int32), _random_sign(key))

    def observe(self, state: ProbeMemoryState) -> jax.Array:
        return jnp.where(state.time == 0, state.sign, 0.0)[None]

    def advance(
        self, state: ProbeMemoryState, action: jax.Array, key: jax.Array
    ) -> tuple[ProbeMemoryState, jax.Array, jax.Array]:
        last = state.time == self.blanks
        reward = jnp.where((action == 1) == (state.sign > 0), 1.0, -1.0)
        return state._replace(time=state.time + 1), jnp.where(last, reward, 0.0), last


class ProbeMaskState(NamedTuple):
    """Which actions are legal, and whether high ones pay (1) or low ones (-1)."""

    legal: jax.Array
    sign: jax.Array


@dataclasses.dataclass(frozen=True)
class ProbeMask(Probe):
    """Two of four actions are legal, others at each step. Observation -1 or 1: the higher an action is, the less or the
    more it pays, from 0 to 1. An illegal one ends the episode and costs 100.

    The best legal actions pay 7/9 on average, random ones 1/2; without the mask, no policy knows which are legal.
    """

    max_steps: int = 8

    @property
    def observation_space(self) -> Dict:
        return Dict((("action_mask", Box(0.0, 1.0, (4,), "bool")), ("observation", super().observation_space)))

    @property
    def action_space(self) -> Discrete:
        return Discrete(4)

    def initial(self, key: jax.Array) -> ProbeMaskState:
        legal_key, sign_key = jax.random.split(key)
        legal = jax.random.permutation(legal_key, jnp.arange(4) < 2)
        return ProbeMaskState(legal, _random_sign(sign_key))

    def observe(self, state: ProbeMaskState) -> dict[str, jax.Array]:
        return {"action_mask": state.legal, "observation": state.sign[None]}

    def advance(
        self, state: ProbeMaskState, action: jax.Array, key: jax.Array
    ) -> tuple[ProbeMaskState, jax.Array, jax.Array]:
        reward = jnp.where(state.sign > 0, action, 3 - action) / 3
        is_legal = state.legal[action]
        return self.initial(key), jnp.where(is_legal, reward, -100.0), ~is_legal


class ProbeTeamState(NamedTuple):
    """Steps taken in this episode, and the sign that each agent observes."""

    time: jax.Array
    number: jax.Array


@dataclasses.dataclass(frozen=True)
class ProbeTeam(TeamEnvironment):
    """Agent i is active for i + 1 steps, each like ProbeAction's; then its observations and rewards are garbage.

    Value with k steps left: 1 + gamma + ... + gamma^(k - 1): agents are distinguished, and inactive ones ignored.
    """

    max_steps: int = 1_000
    agents: int = dataclasses.field(default=4, kw_only=True)
    garbage: float = 1e6

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (2,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def initial(self, key: jax.Array) -> ProbeTeamState:
        return ProbeTeamState(jnp.zeros((), jnp.int32), self._signs(key))

    def observe(self, state: ProbeTeamState) -> jax.Array:
        steps_left = (jnp.arange(self.agents) + 1 - state.time) / self.agents
        rows = jnp.stack([state.number, steps_left], axis=-1)
        return jnp.where(self.alive(state)[:, None], rows, self.garbage)

    def alive(self, state: ProbeTeamState) -> jax.Array:
        return state.time <= jnp.arange(self.agents)

    def advance(
        self, state: ProbeTeamState, action: jax.Array, key: jax.Array
    ) -> tuple[ProbeTeamState, jax.Array, jax.Array]:
        reward = jnp.where((action == 1) == (state.number > 0), 1.0, -1.0)
        reward = jnp.where(self.alive(state), reward, self.garbage)
        return ProbeTeamState(state.time + 1, self._signs(key)), reward, state.time == self.agents - 1

    def _signs(self, key: jax.Array) -> jax.Array:
        return jax.vmap(_random_sign)(jax.random.split(key, self.agents))


def _random_sign(key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
