"""JaxMARL environments as teams; its own reset loses the last observation.

Where agents' spaces differ, observations are padded with zeros, and actions with ones that a mask marks as illegal.
A name that ends in `:world_state` adds what the simulator knows, for critics.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import Box, Dict, Discrete, Space
from fragmenta_core.teams import MASK, OBSERVATION, common_actions, common_observations, with_mask

PARTICLES = {"simple_spread": SimpleSpread, "simple_tag": SimpleTag}
"""Our variants of two environments: any number of agents, and a scripted runner."""
SELF_RESETTING = ("coin_game", "storm", "ant_", "halfcheetah_", "hopper_", "humanoid_", "walker2d_")
"""Name prefixes of environments that reset inside a plain step, which loses the last observation."""
LEGAL_ACTIONS = ("get_avail_actions", "get_legal_moves")
"""The methods by which environments say which actions are legal; few have one."""

WORLD_STATE = "world_state"
"""The part of an observation that is the simulator's state, the same for all agents or from the view of each."""


class EnvState(NamedTuple):
    """A state of JaxMARL, each agent's observation (padded), and which agents are active."""

    state: Any
    observation: jax.Array
    alive: jax.Array


@dataclasses.dataclass(frozen=True)
class JaxMARLEnvironment(TeamEnvironment):
    """One JaxMARL environment with its defaults; its time limit is `max_steps`, which truncates an episode."""

    name: str = dataclasses.field(kw_only=True)
    shows_world_state: bool = dataclasses.field(default=False, kw_only=True)

    def original(self) -> Any:
        """JaxMARL's environment with our time limit, the same object for the same name and limit."""
        return _build(self.name, self.max_steps)

    @property
    def observation_space(self) -> Space:
        rows = observation_shapes(self)
        if not isinstance(rows, dict):
            return _row_space(rows)
        parts = {name: _row_space(part) for name, part in rows.items()}
        if MASK in rows:
            parts |= with_mask(parts[OBSERVATION], rows[MASK].shape[1]).spaces
        return Dict(tuple(sorted(parts.items())))

    @property
    def action_space(self) -> Space:
        return common_actions(self.name, _action_spaces(self.name))

    def alive(self, state: EnvState) -> jax.Array:
        return state.alive

    def initial(self, key: jax.Array) -> EnvState:
        observations, state = self.original().reset(key)
        return EnvState(fixed_types(state), self._padded(observations), jnp.ones((self.agents,), bool))

    def observe(self, state: EnvState) -> Any:
        parts = {OBSERVATION: state.observation}
        if _has_mask(self.name):
            parts[MASK] = self._legal(state.state)
        if self.shows_world_state:
            known = plain(self.original().get_world_state(state.state))
            parts[WORLD_STATE] = jnp.broadcast_to(known, (self.agents, known.shape[-1]))
        return parts if len(parts) > 1 else state.observation

    def advance(self, state: EnvState, action: jax.Array, key: jax.Array) -> tuple[EnvState, jax.Array, jax.Array]:
        trimmed = map(_trimmed, _action_spaces(self.name), action)
        actions = dict(zip(self.original().agents, trimmed, strict=True))
        # JaxMARL does not distinguish a time limit from termination, so step without a limit. Some environments
        # show the time left, so take the observations of the one with a limit.
        unlimited = _build(self.name, NO_LIMIT)
        observations, next_state, rewards, dones, _ = unlimited.step_env(key, state.state, actions)
        if _has_limit(self.original()):
            observations = self.original().get_obs(next_state)
        next_state = EnvState(fixed_types(next_state, state.state), self._padded(observations), ~self._rows(dones))
        return next_state, self._rows(rewards), dones["__all__"]

    def _rows(self, by_name: dict[str, Any]) -> jax.Array:
        return jnp.stack([plain(by_name[name]) for name in self.original().agents])

    def _padded(self, by_name: dict[str, Any]) -> jax.Array:
        """Vectors of all agents, with zeros after those that are shorter than others."""
        rows = [plain(by_name[name]) for name in self.original().agents]
        if len({row.shape for row in rows}) == 1:
            return jnp.stack(rows)
        width = max(row.shape[0] for row in rows)
        return jnp.stack([jnp.pad(row, (0, width - row.shape[0])) for row in rows])

    def _legal(self, state: Any) -> jax.Array:
        """Which actions every agent may take: those it has, if the environment does not say more."""
        sizes = np.asarray([space.n for space in _action_spaces(self.name) if isinstance(space, Discrete)])
        has_action = jnp.arange(sizes.max()) < sizes[:, None]
        method = _legal_method(self.name)
        if method is None:
            return has_action.astype(jnp.float32)
        return (has_action & (self._padded(getattr(self.original(), method)(state)) > 0)).astype(jnp.float32)


def make(name: str) -> TeamEnvironment:
    """The environment registered in JaxMARL under that name, or one of our two particle environments; the name may end
    in `:world_state`."""
    name, colon, part = name.partition(":")
    problem = f"jaxmarl:{name} has no part '{part}' to add to its observations"
    no_part = ConfigError(f"{problem}: leave it out; the critics of mappo, qmix and maddpg see what all agents observe")
    if name in PARTICLES and not colon:
        return PARTICLES[name]()
    if colon and (part != WORLD_STATE or name in PARTICLES):
        raise no_part
    registered = import_package("jaxmarl", "jaxmarl").registered_envs
    names = [*PARTICLES, *(known_name for known_name in registered if not known_name.startswith(SELF_RESETTING))]
    if name not in names:
        raise unknown("environment", f"jaxmarl:{name}", [f"jaxmarl:{known_name}" for known_name in names])
    env = _build(name, None)
    limit = env.max_steps if _has_limit(env) else NO_LIMIT
    observations, _ = jax.eval_shape(env.reset, jax.random.key(0))
    try:
        common_observations(f"jaxmarl:{name}", [_type_space(observations[agent]) for agent in env.agents])
        common_actions(f"jaxmarl:{name}", _action_spaces(name))
    except UnusableError as error:
        raise ConfigError(str(error)) from error
    if colon and not _has_world_state(env):
        raise no_part
    return JaxMARLEnvironment(limit, name=name, agents=len(env.agents), shows_world_state=bool(colon))


def _row_space(rows: Any) -> Space:
    return _type_space(jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype))


def _type_space(observation: Any) -> Space:
    return space_of(jax.eval_shape(plain, observation))


@functools.cache
def _action_spaces(name: str) -> tuple[Space, ...]:
    """The action space of each agent."""
    env = _build(name, None)
    with jax.ensure_compile_time_eval():
        return tuple(action_space_of(env.action_space(agent)) for agent in env.agents)


def _trimmed(space: Space, action: jax.Array) -> jax.Array:
    """An agent's action without what was padded."""
    if isinstance(space, Discrete):
        return jnp.minimum(action, space.n - 1)
    if isinstance(space, Box) and len(space.shape) == 1:
        return jnp.clip(action[: space.shape[0]], space.low, space.high)
    return action


def _has_mask(name: str) -> bool:
    """Whether some actions of some agents may be illegal."""
    spaces = _action_spaces(name)
    return isinstance(spaces[0], Discrete) and (len(set(spaces)) > 1 or _legal_method(name) is not None)


@functools.cache
def _legal_method(name: str) -> str | None:
    """The method by which the environment says which actions are legal, if it has one."""
    env = _build(name, None)
    _, state = jax.eval_shape(env.reset, jax.random.key(0))
    for method in LEGAL_ACTIONS:
        try:
            jax.eval_shape(getattr(env, method), state)
        except (AttributeError, NotImplementedError):
            continue
        return method
    return None


def _has_world_state(env: Any) -> bool:
    """Whether the simulator's state is one vector for all agents, or one for each."""
    _, state = jax.eval_shape(env.reset, jax.random.key(0))
    try:
        known = jax.eval_shape(env.get_world_state, state)
    except (AttributeError, NotImplementedError):
        return False
    return hasattr(known, "shape") and known.shape[:-1] in ((), (len(env.agents),))


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
