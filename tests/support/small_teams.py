"""Teams so small that the values of joint actions are known."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragmenta import Box, Dict, Discrete, MultiDiscrete, TeamEnvironment

PAYOFF = ((0.0, 1.0), (1.0, 8.0))


@dataclasses.dataclass(frozen=True)
class TwoSteps(TeamEnvironment):
    """The matrix game of the QMIX paper: the first agent chooses a safe game, which pays 7 whatever they do, or one
    that pays 8 only if both choose their second action. The sum of two values cannot represent that one."""

    max_steps: int = 100
    agents: int = dataclasses.field(default=2, kw_only=True)

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 1.0, (3,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def initial(self, key: jax.Array) -> jax.Array:
        return jnp.zeros((), jnp.int32)

    def observe(self, state: jax.Array) -> jax.Array:
        return jnp.tile(jax.nn.one_hot(state, 3), (2, 1))

    def advance(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        payoff = jnp.where(state == 1, 7.0, jnp.asarray(PAYOFF)[action[0], action[1]])
        reward = jnp.where(state == 0, 0.0, payoff)
        return jnp.where(state == 0, 1 + action[0], state), jnp.full(2, reward), state > 0


class NumberState(NamedTuple):
    """The number that each agent observes."""

    number: jax.Array


@dataclasses.dataclass(frozen=True)
class AimingTeam(TeamEnvironment):
    """One step with continuous actions from -2 to 2. An agent observes a number, and its reward is 1 less the squared
    distance of its action from that number, and less that of the other's action from the other's number."""

    max_steps: int = 10
    agents: int = dataclasses.field(default=2, kw_only=True)

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (1,))

    @property
    def action_space(self) -> Box:
        return Box(-2.0, 2.0, (1,))

    def initial(self, key: jax.Array) -> NumberState:
        return NumberState(jax.random.uniform(key, (self.agents,), minval=-1.0, maxval=1.0))

    def observe(self, state: NumberState) -> jax.Array:
        return state.number[:, None]

    def advance(
        self, state: NumberState, action: jax.Array, key: jax.Array
    ) -> tuple[NumberState, jax.Array, jax.Array]:
        cost = jnp.sum((action[:, 0] - state.number) ** 2)
        return state, jnp.full(self.agents, 1.0 - cost), jnp.ones((), bool)


@dataclasses.dataclass(frozen=True)
class UnlikeTeam(TeamEnvironment):
    """One step. Agent i has i + 2 actions; one of them, which it observes, is illegal.

    Its reward is its action over the number of agents, and -100 for an illegal or a padded action.
    """

    max_steps: int = 10
    agents: int = dataclasses.field(default=2, kw_only=True)

    @property
    def observation_space(self) -> Dict:
        mask = Box(0.0, 1.0, (self.agents + 1,))
        return Dict((("action_mask", mask), ("observation", Box(0.0, 1.0, (self.agents + 1,)))))

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.agents + 1)

    def initial(self, key: jax.Array) -> NumberState:
        return NumberState(jax.random.randint(key, (self.agents,), 0, jnp.arange(self.agents) + 2))

    def observe(self, state: NumberState) -> dict[str, jax.Array]:
        banned = jax.nn.one_hot(state.number, self.agents + 1)
        exists = jnp.arange(self.agents + 1) < jnp.arange(self.agents)[:, None] + 2
        return {"action_mask": exists * (1.0 - banned), "observation": banned}

    def advance(
        self, state: NumberState, action: jax.Array, key: jax.Array
    ) -> tuple[NumberState, jax.Array, jax.Array]:
        mask = self.observe(state)["action_mask"]
        is_legal = jnp.take_along_axis(mask, action[:, None], axis=1)[:, 0] > 0
        return state, jnp.where(is_legal, action / self.agents, -100.0), jnp.ones((), bool)


@dataclasses.dataclass(frozen=True)
class HintedTeam(TeamEnvironment):
    """One step of two actions. An agent observes a number of its own; the part `hint` says which action pays 1."""

    max_steps: int = 10
    agents: int = dataclasses.field(default=2, kw_only=True)

    @property
    def observation_space(self) -> Dict:
        return Dict((("hint", Box(0.0, 1.0, (3,))), ("observation", Box(-1.0, 1.0, (1,)))))

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def initial(self, key: jax.Array) -> NumberState:
        return NumberState(jax.random.randint(key, (self.agents,), 0, 2))

    def observe(self, state: NumberState) -> dict[str, jax.Array]:
        return {"hint": jax.nn.one_hot(state.number, 3), "observation": jnp.linspace(-1.0, 1.0, self.agents)[:, None]}

    def advance(
        self, state: NumberState, action: jax.Array, key: jax.Array
    ) -> tuple[NumberState, jax.Array, jax.Array]:
        return state, (action == state.number).astype(jnp.float32), jnp.ones((), bool)


class RecallState(NamedTuple):
    """What each agent saw at first, and how many steps there were."""

    number: jax.Array
    time: jax.Array


@dataclasses.dataclass(frozen=True)
class RecallTeam(TeamEnvironment):
    """Three steps: each agent observes its number, 0 or 1, at the first alone, and gets 1 if its last action is it."""

    max_steps: int = 10
    agents: int = dataclasses.field(default=2, kw_only=True)

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (1,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def initial(self, key: jax.Array) -> RecallState:
        return RecallState(jax.random.randint(key, (self.agents,), 0, 2), jnp.zeros((), jnp.int32))

    def observe(self, state: RecallState) -> jax.Array:
        return jnp.where(state.time == 0, 2.0 * state.number - 1.0, 0.0)[:, None]

    def advance(
        self, state: RecallState, action: jax.Array, key: jax.Array
    ) -> tuple[RecallState, jax.Array, jax.Array]:
        is_last = state.time == 2
        reward = jnp.where(is_last & (action == state.number), 1.0, 0.0)
        return RecallState(state.number, state.time + 1), reward, is_last


@dataclasses.dataclass(frozen=True)
class SightedTeam(TeamEnvironment):
    """One step; agents observe small images and choose two integers, and all of it pays 1."""

    max_steps: int = 10
    agents: int = dataclasses.field(default=2, kw_only=True)

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 255.0, (8, 8, 1), "uint8")

    @property
    def action_space(self) -> MultiDiscrete:
        return MultiDiscrete((2, 3))

    def initial(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (self.agents, 8, 8, 1), 0, 256).astype(jnp.uint8)

    def observe(self, state: jax.Array) -> jax.Array:
        return state

    def advance(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return state, jnp.ones(self.agents), jnp.ones((), bool)
