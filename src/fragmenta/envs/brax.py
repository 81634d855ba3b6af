"""Brax environments without its wrappers, which restart every episode from the same first state."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.envs.base import Environment
from fragmenta.envs.packages import fixed_types, import_package, observation_shapes, plain, space_of
from fragmenta.errors import unknown
from fragmenta_core.spaces import Box, Space

BACKENDS = ("generalized", "mjx", "positional", "spring")


@dataclasses.dataclass(frozen=True)
class StatefulEnvironment(Environment):
    """An environment whose state contains observation, reward and `done`, and that never truncates episodes itself."""

    max_steps: int = 1_000
    name: str = dataclasses.field(kw_only=True)

    def original(self) -> Any:
        """The package's own environment, the same object for the same name."""
        raise NotImplementedError

    @property
    def observation_space(self) -> Space:
        return space_of(observation_shapes(self))

    @property
    def action_space(self) -> Box:
        return Box(-1.0, 1.0, (int(self.original().action_size),))

    def initial(self, key: jax.Array) -> Any:
        return fixed_types(self.original().reset(key))

    def observe(self, state: Any) -> Any:
        return plain(state.obs)

    def advance(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        # Both packages train with squashed actions and penalise larger ones; our normal distribution is not squashed.
        state = fixed_types(self.original().step(state, jnp.clip(action, -1.0, 1.0)), state)
        return state, state.reward, state.done.astype(bool)


@dataclasses.dataclass(frozen=True)
class BraxEnvironment(StatefulEnvironment):
    """One brax environment; it terminates when the body falls, and is truncated after `max_steps`."""

    backend: str = dataclasses.field(default="generalized", kw_only=True)

    def original(self) -> Any:
        return _build(self.name, self.backend)


def make(name: str) -> BraxEnvironment:
    """The environment with that name, on brax's default backend or another one: `ant`, `ant/spring`."""
    names = import_package("brax.envs", "brax")._envs
    name, slash, backend = name.partition("/")
    if name not in names:
        raise unknown("environment", f"brax:{name}", [f"brax:{known_name}" for known_name in names])
    if slash and backend not in BACKENDS:
        raise unknown("brax backend", backend, BACKENDS)
    return BraxEnvironment(name=name, backend=backend or BACKENDS[0])


@functools.cache
def _build(name: str, backend: str) -> Any:
    brax = import_package("brax.envs", "brax")
    with jax.ensure_compile_time_eval():  # it creates arrays, which must be constants even inside a trace
        return brax.get_environment(name, backend=backend)
