"""Environments of Jumanji, without its automatic reset; observations of several parts become dictionaries."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.envs.base import Environment
from fragmenta.envs.packages import NO_LIMIT, fixed_types, load, plain, shown_by, space_of
from fragmenta.errors import unknown
from fragmenta_core.spaces import Box, Discrete, MultiDiscrete, Space


class Shown(NamedTuple):
    """A state of Jumanji, what it shows, and whether the episode was cut off there."""

    state: Any
    observation: Any
    cut_off: jax.Array


@dataclasses.dataclass(frozen=True)
class JumanjiEnvironment(Environment):
    """One environment of Jumanji. With several agents it is one that acts for all: rewards add up, as in Jumanji's own
    wrapper, and the episode terminated where it did so for everybody.
    """

    name: str = dataclasses.field(kw_only=True)

    def original(self) -> Any:
        """Jumanji's environment, the same object for the same name."""
        return _build(self.name)

    @property
    def observation_space(self) -> Space:
        return space_of(shown_by(self))

    @property
    def action_space(self) -> Space:
        spec = self.original().action_spec
        if not hasattr(spec, "num_values"):
            if jnp.issubdtype(spec.dtype, jnp.integer):
                choices = np.broadcast_to(np.asarray(spec.maximum), spec.shape) + 1
                return MultiDiscrete(tuple(int(count) for count in choices.ravel()))
            return Box(float(np.min(spec.minimum)), float(np.max(spec.maximum)), tuple(spec.shape))
        if spec.shape == ():
            return Discrete(int(spec.num_values))
        return MultiDiscrete(tuple(int(count) for count in np.ravel(spec.num_values)))

    @property
    def shortest_cut(self) -> int:
        return min(self.max_steps, getattr(self.original(), "time_limit", 1))  # without one known, at any step

    def cut_off(self, state: Shown) -> jax.Array:
        return state.cut_off

    def initial(self, key: jax.Array) -> Shown:
        state, time_step = self.original().reset(key)
        return Shown(fixed_types(state), plain(time_step.observation), jnp.zeros((), bool))

    def observe(self, state: Shown) -> Any:
        return state.observation

    def advance(self, state: Shown, action: jax.Array, key: jax.Array) -> tuple[Shown, jax.Array, jax.Array]:
        action = action.reshape(self.original().action_spec.shape)
        following, time_step = self.original().step(state.state, action)
        # The last step of an episode that still has a future, as its discount says, was not its end.
        future = jnp.any(time_step.discount > 0)
        following = Shown(fixed_types(following, state.state), plain(time_step.observation), time_step.last() & future)
        return following, jnp.sum(time_step.reward), time_step.last() & ~future


def make(name: str) -> JumanjiEnvironment:
    """The environment that Jumanji registers under that name, with the time limit it has there, if any."""
    known = load("jumanji", "jumanji").registered_environments()
    if name not in known:
        raise unknown("environment", f"jumanji:{name}", [f"jumanji:{known_name}" for known_name in known])
    return JumanjiEnvironment(int(getattr(_build(name), "time_limit", NO_LIMIT)), name=name)


@functools.cache
def _build(name: str) -> Any:
    jumanji = load("jumanji", "jumanji")
    with jax.ensure_compile_time_eval():  # it makes arrays, which must be constants even within a trace
        return jumanji.make(name)
