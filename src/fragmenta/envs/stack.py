"""Stacks the last observations, for environments in which one observation does not show motion."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs.base import Environment
from fragmenta.errors import ConfigError
from fragmenta_core.spaces import Box, Space


class StackState(NamedTuple):
    """The environment's state, and its last observations, newest last."""

    inner: Any
    frames: jax.Array


@dataclasses.dataclass(frozen=True)
class Stack(Environment):
    """An environment that returns its last `frames` observations along a new first axis.

    At the start of an episode the first observation is repeated.
    """

    max_steps: int = dataclasses.field(init=False)
    env: Environment
    frames: int

    def __post_init__(self) -> None:
        name = type(self.env).__name__
        if self.env.num_agents > 1 or not isinstance(self.env.observation_space, Box):
            raise ConfigError(f"{name} cannot be stacked: only Box observations of a single agent can")
        if self.frames < 1:
            raise ConfigError(f"frames is {self.frames}: it must be at least 1")
        object.__setattr__(self, "max_steps", self.env.max_steps)

    @property
    def observation_space(self) -> Box:
        space = self.env.observation_space
        assert isinstance(space, Box)
        return dataclasses.replace(space, shape=(self.frames, *space.shape))

    @property
    def action_space(self) -> Space:
        return self.env.action_space

    @property
    def stacks_frames(self) -> bool:
        return self.frames > 1

    @property
    def shortest_cut(self) -> int:
        return self.env.shortest_cut

    def cut_off(self, state: StackState) -> jax.Array:
        return self.env.cut_off(state.inner)

    def initial(self, key: jax.Array) -> StackState:
        inner = self.env.initial(key)
        return StackState(inner, jnp.stack([self.env.observe(inner)] * self.frames))

    def observe(self, state: StackState) -> jax.Array:
        return state.frames

    def advance(self, state: StackState, action: jax.Array, key: jax.Array) -> tuple[StackState, jax.Array, jax.Array]:
        inner, reward, terminated = self.env.advance(state.inner, action, key)
        frames = jnp.concatenate([state.frames[1:], self.env.observe(inner)[None]])
        return StackState(inner, frames), reward, terminated
