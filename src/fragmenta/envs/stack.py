"""Stacks the last observations, for environments in which one observation does not show motion."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs.base import Environment
from fragmenta.errors import ConfigError
from fragmenta_core.spaces import MASK, Box, Dict, Space


class StackState(NamedTuple):
    """The environment's state, and its last observations, newest last."""

    inner: Any
    frames: Any


@dataclasses.dataclass(frozen=True)
class Stack(Environment):
    """An environment that returns its last `frames` observations along a new first axis.

    At the start of an episode the first observation is repeated. Of dictionaries all parts are stacked but the mask of
    legal actions, which is that of now.
    """

    max_steps: int = dataclasses.field(init=False)
    env: Environment
    frames: int

    def __post_init__(self) -> None:
        name = type(self.env).__name__
        if self.env.num_agents > 1 or not all(isinstance(part, Box) for part in _parts(self.env.observation_space)):
            raise ConfigError(f"{name} cannot be stacked: only Box observations of a single agent can, or dictionaries")
        if self.frames < 1:
            raise ConfigError(f"frames is {self.frames}: it must be at least 1")
        object.__setattr__(self, "max_steps", self.env.max_steps)

    @property
    def observation_space(self) -> Space:
        space = self.env.observation_space
        if isinstance(space, Dict):
            return Dict(
                tuple((name, part if name == MASK else _stacked(part, self.frames)) for name, part in space.spaces)
            )
        return _stacked(space, self.frames)

    @property
    def action_space(self) -> Space:
        return self.env.action_space

    @property
    def stacks_frames(self) -> bool:
        return self.frames > 1 and isinstance(self.env.observation_space, Box)

    @property
    def shortest_cut(self) -> int:
        return self.env.shortest_cut

    def cut_off(self, state: StackState) -> jax.Array:
        return self.env.cut_off(state.inner)

    def initial(self, key: jax.Array) -> StackState:
        inner = self.env.initial(key)
        first, _ = _apart(self.env.observe(inner))
        return StackState(inner, jax.tree.map(lambda x: jnp.stack([x] * self.frames), first))

    def observe(self, state: StackState) -> Any:
        _, mask = _apart(self.env.observe(state.inner))
        return {**state.frames, **mask} if mask else state.frames

    def advance(self, state: StackState, action: jax.Array, key: jax.Array) -> tuple[StackState, jax.Array, jax.Array]:
        inner, reward, terminated = self.env.advance(state.inner, action, key)
        newest, _ = _apart(self.env.observe(inner))
        frames = jax.tree.map(lambda old, new: jnp.concatenate([old[1:], new[None]]), state.frames, newest)
        return StackState(inner, frames), reward, terminated


def _parts(space: Space) -> list[Space]:
    """What is stacked of observations."""
    return [part for name, part in space.spaces if name != MASK] if isinstance(space, Dict) else [space]


def _stacked(space: Space, frames: int) -> Box:
    assert isinstance(space, Box)
    return dataclasses.replace(space, shape=(frames, *space.shape))


def _apart(observation: Any) -> tuple[Any, dict[str, Any]]:
    """What is stacked of an observation, and the mask of legal actions, if there is one."""
    if not isinstance(observation, dict) or MASK not in observation:
        return observation, {}
    return {name: part for name, part in observation.items() if name != MASK}, {MASK: observation[MASK]}
