"""Gymnax environments, for its versions 0.0.x and 1.x, which differ in what counts as termination."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.envs.base import Environment
from fragmenta.envs.packages import (
    NO_LIMIT,
    action_space_of,
    fixed_types,
    import_package,
    observation_shapes,
    plain,
    space_of,
)
from fragmenta.errors import unknown
from fragmenta_core.spaces import Discrete, Space


class EnvState(NamedTuple):
    """A state of gymnax and its observation, which only `reset_env` and `step_env` return in every version."""

    state: Any
    observation: Any


@dataclasses.dataclass(frozen=True)
class GymnaxEnvironment(Environment):
    """One gymnax environment with its default parameters; `max_steps` is its time limit."""

    name: str = dataclasses.field(kw_only=True)

    def original(self) -> Any:
        """Gymnax's environment, the same object for the same name."""
        return _build(self.name)[0]

    def params(self) -> Any:
        """Gymnax's parameters with our time limit, on which some environments' observations or rewards depend."""
        return _build(self.name)[1].replace(max_steps_in_episode=self.max_steps)

    @property
    def observation_space(self) -> Space:
        shapes = observation_shapes(self)
        with jax.ensure_compile_time_eval():  # it computes bounds with JAX, which a trace would make abstract
            space = self.original().observation_space(self.params())
            if hasattr(space, "n") and shapes.shape == ():
                return Discrete(int(space.n))
            if hasattr(space, "low"):
                return space_of(shapes, np.min(space.low), np.max(space.high))
            return space_of(shapes)

    @property
    def action_space(self) -> Space:
        with jax.ensure_compile_time_eval():
            return action_space_of(self.original().action_space(self.params()))

    def initial(self, key: jax.Array) -> EnvState:
        observation, state = self.original().reset_env(key, self.params())
        return EnvState(fixed_types(state), plain(observation))

    def observe(self, state: EnvState) -> Any:
        return state.observation

    def advance(self, state: EnvState, action: jax.Array, key: jax.Array) -> tuple[EnvState, jax.Array, jax.Array]:
        env, params = self.original(), self.params()
        observation, next_state, reward, done, _ = env.step_env(key, state.state, action, params)
        if not hasattr(env, "is_truncated"):
            # 0.0.x: `done` includes the time limit, and some states store it. A step without a limit tells whether the
            # episode terminated; XLA computes what both steps share only once.
            unlimited = params.replace(max_steps_in_episode=NO_LIMIT)
            done = env.step_env(key, state.state, action, unlimited)[3]
        next_state = EnvState(fixed_types(next_state, state.state), plain(observation))
        return next_state, jnp.reshape(reward, ()), jnp.reshape(done, ()).astype(bool)


def make(name: str) -> GymnaxEnvironment:
    """The environment registered in gymnax under that name, with its time limit there."""
    names = import_package("gymnax", "gymnax").registered_envs
    if name not in names:
        raise unknown("environment", f"gymnax:{name}", [f"gymnax:{known_name}" for known_name in names])
    return GymnaxEnvironment(int(_build(name)[1].max_steps_in_episode), name=name)


@functools.cache
def _build(name: str) -> tuple[Any, Any]:
    gymnax = import_package("gymnax", "gymnax")
    with jax.ensure_compile_time_eval():  # it creates arrays, which must be constants even inside a trace
        return gymnax.make(name)
