"""Jumanji environments, without their automatic reset; structured observations become dictionaries."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.envs.base import Environment
from fragmenta.envs.packages import NO_LIMIT, fixed_types, import_package, observation_shapes, plain, space_of
from fragmenta.errors import unknown
from fragmenta_core.spaces import MASK, Box, Discrete, MultiDiscrete, Space


class EnvState(NamedTuple):
    """A state of Jumanji, its observation, and whether the episode was truncated there."""

    state: Any
    observation: Any
    cut_off: jax.Array


@dataclasses.dataclass(frozen=True)
class JumanjiEnvironment(Environment):
    """One Jumanji environment. Several agents become one that acts for all: rewards are summed, as in Jumanji's own
    wrapper, and the episode terminates when it does for all of them.
    """

    name: str = dataclasses.field(kw_only=True)

    def original(self) -> Any:
        """Jumanji's environment, the same object for the same name."""
        return _build(self.name)

    @property
    def observation_space(self) -> Space:
        return space_of(observation_shapes(self))

    @property
    def action_space(self) -> Space:
        spec = self.original().action_spec
        if not hasattr(spec, "num_values"):
            # Arrays of NumPy: those of JAX compute with tracers inside a trace, and a space has plain numbers.
            low, high = np.asarray(spec.minimum), np.asarray(spec.maximum)
            if jnp.issubdtype(spec.dtype, jnp.integer):
                choices = np.broadcast_to(high, spec.shape) + 1
                return MultiDiscrete(tuple(int(count) for count in choices.ravel()))
            return Box(float(low.min()), float(high.max()), tuple(spec.shape))
        choices = np.asarray(spec.num_values)
        if spec.shape == ():
            return Discrete(int(choices))
        if self._is_joint:
            return Discrete(int(choices.prod()))
        return MultiDiscrete(tuple(int(count) for count in choices.ravel()))

    @property
    def _is_joint(self) -> bool:
        """Whether legality is known only of whole actions of several parts, which are then numbered."""
        shapes = observation_shapes(self)
        mask = shapes.get(MASK) if isinstance(shapes, dict) else None
        choices = np.asarray(getattr(self.original().action_spec, "num_values", ()))
        return mask is not None and choices.ndim == 1 and mask.size == np.prod(choices) != np.sum(choices)

    @property
    def shortest_cut(self) -> int:
        return min(self.max_steps, getattr(self.original(), "time_limit", 1))  # if it is unknown, at any step

    def cut_off(self, state: EnvState) -> jax.Array:
        return state.cut_off

    def initial(self, key: jax.Array) -> EnvState:
        state, time_step = self.original().reset(key)
        return EnvState(fixed_types(state), plain(time_step.observation), jnp.zeros((), bool))

    def observe(self, state: EnvState) -> Any:
        return state.observation

    def advance(self, state: EnvState, action: jax.Array, key: jax.Array) -> tuple[EnvState, jax.Array, jax.Array]:
        spec = self.original().action_spec
        if self._is_joint:
            action = jnp.stack(jnp.unravel_index(action, tuple(np.asarray(spec.num_values).tolist())))
        action = action.reshape(spec.shape).astype(spec.dtype)
        next_state, time_step = self.original().step(state.state, action)
        # A last step with a positive discount was truncated, not terminated.
        future = jnp.any(time_step.discount > 0)
        observation = plain(time_step.observation)
        next_state = EnvState(fixed_types(next_state, state.state), observation, time_step.last() & future)
        return next_state, jnp.sum(time_step.reward), time_step.last() & ~future


def make(name: str) -> JumanjiEnvironment:
    """The environment registered in Jumanji under that name, with its time limit there, if any."""
    names = import_package("jumanji", "jumanji").registered_environments()
    if name not in names:
        raise unknown("environment", f"jumanji:{name}", [f"jumanji:{known_name}" for known_name in names])
    return JumanjiEnvironment(int(getattr(_build(name), "time_limit", NO_LIMIT)), name=name)


@functools.cache
def _build(name: str) -> Any:
    jumanji = import_package("jumanji", "jumanji")
    with jax.ensure_compile_time_eval():  # it creates arrays, which must be constants even inside a trace
        return jumanji.make(name)
