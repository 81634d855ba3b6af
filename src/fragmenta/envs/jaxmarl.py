"""Environments of JaxMARL as teams, where all agents have equal spaces; its own reset loses the last observation."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs.packages import NO_LIMIT, action_space_of, fixed_types, load, plain, quiet, shown_by, space_of
from fragmenta.envs.particles import SimpleSpread, SimpleTag
from fragmenta.envs.team import TeamEnvironment
from fragmenta.errors import ConfigError, unknown
from fragmenta_core.spaces import Space

PARTICLES = {"simple_spread": SimpleSpread, "simple_tag": SimpleTag}
"""Our own variants of two of them: any number of agents, a runner that flees by a rule."""
RESET_THEMSELVES = ("coin_game", "storm", "ant_", "halfcheetah_", "hopper_", "humanoid_", "walker2d_")
"""What names begin with that start anew within a plain step, so that what was seen last is lost."""


class Shown(NamedTuple):
    """A state of JaxMARL, what each agent sees of it, and which of them take part."""

    state: Any
    observation: jax.Array
    alive: jax.Array


@dataclasses.dataclass(frozen=True)
class JaxMARLEnvironment(TeamEnvironment):
    """One environment of JaxMARL as it makes it; its time limit is `max_steps`, which cuts an episode off."""

    name: str = dataclasses.field(kw_only=True)

    def original(self) -> Any:
        """JaxMARL's environment with our time limit, the same object for the same name and limit."""
        return _build(self.name, self.max_steps)

    @property
    def observation_space(self) -> Space:
        rows = shown_by(self)
        return space_of(jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype))

    @property
    def action_space(self) -> Space:
        with jax.ensure_compile_time_eval():
            return action_space_of(self.original().action_space(self.original().agents[0]))

    def alive(self, state: Shown) -> jax.Array:
        return state.alive

    def initial(self, key: jax.Array) -> Shown:
        observations, state = self.original().reset(key)
        return Shown(fixed_types(state), self._rows(observations), jnp.ones((self.agents,), bool))

    def observe(self, state: Shown) -> jax.Array:
        return state.observation

    def advance(self, state: Shown, action: jax.Array, key: jax.Array) -> tuple[Shown, jax.Array, jax.Array]:
        actions = dict(zip(self.original().agents, action, strict=True))
        # JaxMARL ends an episode at its time limit as it does at a win: without a limit, only the win is left. Some
        # environments show how much time is left, so what agents see is that of the limited one.
        unlimited = _build(self.name, NO_LIMIT)
        observations, following, rewards, dones, _ = unlimited.step_env(key, state.state, actions)
        if _has_limit(self.original()):
            observations = self.original().get_obs(following)
        following = Shown(fixed_types(following, state.state), self._rows(observations), ~self._rows(dones))
        return following, self._rows(rewards), dones["__all__"]

    def _rows(self, by_name: dict[str, Any]) -> jax.Array:
        return jnp.stack([plain(by_name[name]) for name in self.original().agents])


def make(name: str) -> TeamEnvironment:
    """The environment that JaxMARL registers under that name, or one of the two particle worlds with short names."""
    if name in PARTICLES:
        return PARTICLES[name]()
    registered = load("jaxmarl", "jaxmarl").registered_envs
    known = [*PARTICLES, *(known_name for known_name in registered if not known_name.startswith(RESET_THEMSELVES))]
    if name not in known:
        raise unknown("environment", f"jaxmarl:{name}", [f"jaxmarl:{known_name}" for known_name in known])
    env = _build(name, None)
    limit = env.max_steps if _has_limit(env) else NO_LIMIT
    observations, _ = jax.eval_shape(env.reset, jax.random.key(0))
    seen = {(observations[agent].shape, observations[agent].dtype) for agent in env.agents}
    taken = {action_space_of(env.action_space(agent)) for agent in env.agents}
    if len(seen) > 1 or len(taken) > 1:
        raise ConfigError(f"jaxmarl:{name} has agents that see or do different things: only equal spaces can be a team")
    return JaxMARLEnvironment(limit, name=name, agents=len(env.agents))


def _has_limit(env: Any) -> bool:
    return hasattr(env, "max_steps")


@functools.cache
def _build(name: str, max_steps: int | None) -> Any:
    """The environment with that time limit, where it has one, or as JaxMARL makes it."""
    jaxmarl = load("jaxmarl", "jaxmarl")
    with jax.ensure_compile_time_eval(), quiet():  # it makes arrays, which must be constants even within a trace
        try:
            env = jaxmarl.make(name)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(f"JaxMARL cannot make {name} by its name alone: {error}") from error
    if max_steps is not None and _has_limit(env):
        owner = env
        while "max_steps" not in vars(owner):
            owner = owner._env  # one that plays the enemy passes everything on to the battle within
        owner.max_steps = max_steps
    return env
