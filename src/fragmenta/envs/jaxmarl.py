"""JaxMARL environments whose agents have equal spaces, as teams; its own reset loses the last observation."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs.packages import (
    NO_LIMIT,
    action_space_of,
    fixed_types,
    import_package,
    observation_shapes,
    plain,
    quiet,
    space_of,
)
from fragmenta.envs.particles import SimpleSpread, SimpleTag
from fragmenta.envs.team import TeamEnvironment
from fragmenta.errors import ConfigError, unknown
from fragmenta_core.spaces import Space

PARTICLES = {"simple_spread": SimpleSpread, "simple_tag": SimpleTag}
"""Our variants of two environments: any number of agents, and a scripted runner."""
SELF_RESETTING = ("coin_game", "storm", "ant_", "halfcheetah_", "hopper_", "humanoid_", "walker2d_")
"""Name prefixes of environments that reset inside a plain step, which loses the last observation."""


class EnvState(NamedTuple):
    """A state of JaxMARL, each agent's observation, and which agents are active."""

    state: Any
    observation: jax.Array
    alive: jax.Array


@dataclasses.dataclass(frozen=True)
class JaxMARLEnvironment(TeamEnvironment):
    """One JaxMARL environment with its defaults; its time limit is `max_steps`, which truncates an episode."""

    name: str = dataclasses.field(kw_only=True)

    def original(self) -> Any:
        """JaxMARL's environment with our time limit, the same object for the same name and limit."""
        return _build(self.name, self.max_steps)

    @property
    def observation_space(self) -> Space:
        rows = observation_shapes(self)
        return space_of(jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype))

    @property
    def action_space(self) -> Space:
        with jax.ensure_compile_time_eval():
            return action_space_of(self.original().action_space(self.original().agents[0]))

    def alive(self, state: EnvState) -> jax.Array:
        return state.alive

    def initial(self, key: jax.Array) -> EnvState:
        observations, state = self.original().reset(key)
        return EnvState(fixed_types(state), self._rows(observations), jnp.ones((self.agents,), bool))

    def observe(self, state: EnvState) -> jax.Array:
        return state.observation

    def advance(self, state: EnvState, action: jax.Array, key: jax.Array) -> tuple[EnvState, jax.Array, jax.Array]:
        actions = dict(zip(self.original().agents, action, strict=True))
        # JaxMARL does not distinguish a time limit from termination, so step without a limit. Some environments
        # show the time left, so take the observations of the one with a limit.
        unlimited = _build(self.name, NO_LIMIT)
        observations, next_state, rewards, dones, _ = unlimited.step_env(key, state.state, actions)
        if _has_limit(self.original()):
            observations = self.original().get_obs(next_state)
        next_state = EnvState(fixed_types(next_state, state.state), self._rows(observations), ~self._rows(dones))
        return next_state, self._rows(rewards), dones["__all__"]

    def _rows(self, by_name: dict[str, Any]) -> jax.Array:
        return jnp.stack([plain(by_name[name]) for name in self.original().agents])


def make(name: str) -> TeamEnvironment:
    """The environment registered in JaxMARL under that name, or one of our two particle environments."""
    if name in PARTICLES:
        return PARTICLES[name]()
    registered = import_package("jaxmarl", "jaxmarl").registered_envs
    names = [*PARTICLES, *(known_name for known_name in registered if not known_name.startswith(SELF_RESETTING))]
    if name not in names:
        raise unknown("environment", f"jaxmarl:{name}", [f"jaxmarl:{known_name}" for known_name in names])
    env = _build(name, None)
    limit = env.max_steps if _has_limit(env) else NO_LIMIT
    observations, _ = jax.eval_shape(env.reset, jax.random.key(0))
    observation_types = {(observations[agent].shape, observations[agent].dtype) for agent in env.agents}
    action_spaces = {action_space_of(env.action_space(agent)) for agent in env.agents}
    if len(observation_types) > 1 or len(action_spaces) > 1:
        raise ConfigError(f"jaxmarl:{name} has agents with different spaces: a team needs equal ones")
    return JaxMARLEnvironment(limit, name=name, agents=len(env.agents))


def _has_limit(env: Any) -> bool:
    return hasattr(env, "max_steps")


@functools.cache
def _build(name: str, max_steps: int | None) -> Any:
    """The environment with that time limit, if it supports one; None keeps JaxMARL's default."""
    jaxmarl = import_package("jaxmarl", "jaxmarl")
    with jax.ensure_compile_time_eval(), quiet():  # it creates arrays, which must be constants even inside a trace
        try:
            env = jaxmarl.make(name)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(f"JaxMARL cannot make {name} without arguments: {error}") from error
    if max_steps is not None and _has_limit(env):
        owner = env
        while "max_steps" not in vars(owner):
            owner = owner._env  # a wrapper that plays the enemy forwards attributes to the battle inside it
        owner.max_steps = max_steps
    return env
