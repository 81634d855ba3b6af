"""Craftax and Craftax-Classic, symbolic and in pixels, without their automatic reset."""

import dataclasses
import functools
from typing import Any

import jax

from fragmenta.envs.base import Environment
from fragmenta.envs.packages import NO_LIMIT, fixed_types, import_package, observation_shapes, plain, quiet, space_of
from fragmenta.errors import unknown
from fragmenta_core.spaces import Discrete, Space

NAMES = ("Craftax-Classic-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Symbolic-v1")


@dataclasses.dataclass(frozen=True)
class CraftaxEnvironment(Environment):
    """One of the four; dying terminates an episode, `max_steps` truncates it. Pixels are floats from 0 to 1."""

    name: str = dataclasses.field(kw_only=True)

    def original(self) -> Any:
        """Craftax's environment, the same object for the same name."""
        return _build(self.name)

    def params(self) -> Any:
        """Craftax's parameters without its time limit, which it would count as termination; `max_steps` replaces it."""
        return self.original().default_params.replace(max_timesteps=NO_LIMIT)

    @property
    def observation_space(self) -> Space:
        return space_of(observation_shapes(self), 0.0, 1.0)

    @property
    def action_space(self) -> Discrete:
        return Discrete(int(self.original().num_actions))

    def initial(self, key: jax.Array) -> Any:
        return fixed_types(self.original().reset_env(key, self.params())[1])

    def observe(self, state: Any) -> jax.Array:
        return plain(self.original().get_obs(state))

    def advance(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        _, next_state, reward, died, _ = self.original().step_env(key, state, action, self.params())
        return fixed_types(next_state, state), reward, died


def make(name: str) -> CraftaxEnvironment:
    """The environment with that name, with its time limit in Craftax."""
    if name not in NAMES:
        raise unknown("environment", f"craftax:{name}", [f"craftax:{known_name}" for known_name in NAMES])
    return CraftaxEnvironment(int(_build(name).default_params.max_timesteps), name=name)


@functools.cache
def _build(name: str) -> Any:
    craftax = import_package("craftax.craftax_env", "craftax")
    # The constructor loads textures: arrays, which must be constants even inside a trace.
    with jax.ensure_compile_time_eval(), quiet():
        return craftax.make_craftax_env_from_name(name, auto_reset=False)
