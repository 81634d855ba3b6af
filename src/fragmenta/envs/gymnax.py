"""Environments of gymnax, of its versions 0.0.x and 1.x, which differ in what they call a termination."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.envs.base import Environment
from fragmenta.envs.packages import NO_LIMIT, action_space_of, fixed_types, load, plain, shown_by, space_of
from fragmenta.errors import unknown
from fragmenta_core.spaces import Discrete, Space


class Shown(NamedTuple):
    """A state of gymnax and what it shows, which only `reset_env` and `step_env` give in every version."""

    state: Any
    observation: Any


@dataclasses.dataclass(frozen=True)
class GymnaxEnvironment(Environment):
    """One environment of gymnax with its default parameters; `max_steps` is its time limit."""

    name: str = dataclasses.field(kw_only=True)

    def original(self) -> Any:
        """Gymnax's environment, the same object for the same name."""
        return _build(self.name)[0]

    def params(self) -> Any:
        """Gymnax's parameters with our time limit, which some environments also show or pay by."""
        return _build(self.name)[1].replace(max_steps_in_episode=self.max_steps)

    @property
    def observation_space(self) -> Space:
        shown = shown_by(self)
        with jax.ensure_compile_time_eval():  # it computes bounds with JAX, which within a trace would be no numbers
            said = self.original().observation_space(self.params())
            if hasattr(said, "n") and shown.shape == ():
                return Discrete(int(said.n))
            if hasattr(said, "low"):
                return space_of(shown, np.min(said.low), np.max(said.high))
            return space_of(shown)

    @property
    def action_space(self) -> Space:
        with jax.ensure_compile_time_eval():
            return action_space_of(self.original().action_space(self.params()))

    def initial(self, key: jax.Array) -> Shown:
        observation, state = self.original().reset_env(key, self.params())
        return Shown(fixed_types(state), plain(observation))

    def observe(self, state: Shown) -> Any:
        return state.observation

    def advance(self, state: Shown, action: jax.Array, key: jax.Array) -> tuple[Shown, jax.Array, jax.Array]:
        env, params = self.original(), self.params()
        observation, following, reward, done, _ = env.step_env(key, state.state, action, params)
        if not hasattr(env, "is_truncated"):
            # 0.0.x: `done` mixes in the time limit, and some states remember it. A step without one tells; what
            # both steps compute, XLA computes once.
            unlimited = params.replace(max_steps_in_episode=NO_LIMIT)
            done = env.step_env(key, state.state, action, unlimited)[3]
        following = Shown(fixed_types(following, state.state), plain(observation))
        return following, jnp.reshape(reward, ()), jnp.reshape(done, ()).astype(bool)


def make(name: str) -> GymnaxEnvironment:
    """The environment that gymnax registers under that name, with the time limit it has there."""
    known = load("gymnax", "gymnax").registered_envs
    if name not in known:
        raise unknown("environment", f"gymnax:{name}", [f"gymnax:{known_name}" for known_name in known])
    return GymnaxEnvironment(int(_build(name)[1].max_steps_in_episode), name=name)


@functools.cache
def _build(name: str) -> tuple[Any, Any]:
    gymnax = load("gymnax", "gymnax")
    with jax.ensure_compile_time_eval():  # it makes arrays, which must be constants even within a trace
        return gymnax.make(name)
