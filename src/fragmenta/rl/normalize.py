"""Running statistics that normalise observations and rewards."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs import Box, Dict, Space, Transition
from fragmenta.rl.masks import MASK

LIMIT = 10.0
"""Normalised values are clipped to this many standard deviations from zero."""


class Moments(NamedTuple):
    """Running count, mean, and sum of squared deviations from the mean."""

    number: jax.Array
    mean: jax.Array
    squares: jax.Array

    def add(self, x: jax.Array) -> "Moments":
        """Add the values of one iteration, with time and environments as leading axes (Chan et al., 1979)."""
        x, count = x.astype(jnp.float32), x.shape[0] * x.shape[1]
        # Sum differences from the mean, and square differences from the batch's own mean, so that the terms stay small.
        shift = jnp.sum(x - self.mean, axis=(0, 1)) / count
        squares = jnp.sum((x - (self.mean + shift)) ** 2, axis=(0, 1))
        total = self.number + count
        share = count / total
        squares = self.squares + squares + shift**2 * self.number * share
        return Moments(total, self.mean + shift * share, squares)

    def std(self) -> jax.Array:
        """The standard deviation, or 1 where all values so far are equal."""
        variance = jnp.where(self.squares > 0, self.squares / jnp.maximum(self.number, 1.0), 1.0)
        return jnp.sqrt(variance + 1e-8)


class Normalizer(NamedTuple):
    """Running statistics of observations and rewards; None for those that are not normalised."""

    observation: Any = None
    """Moments per part of the observation; None for images and discrete parts."""
    reward: Moments | None = None
    """Moments of the running return, because its spread is the scale that the value function has to fit."""
    running_return: jax.Array | None = None
    """Per environment: the discounted return of the episode so far."""


def no_moments(space: Space) -> Any:
    """Empty moments for every part of a space, None for images, discrete parts and the mask of legal actions."""
    if isinstance(space, Dict):
        return {name: None if name == MASK else no_moments(part) for name, part in space.spaces}
    if isinstance(space, Box) and not space.is_image:
        zeros = jnp.zeros(space.shape)
        return Moments(jnp.zeros(()), zeros, zeros)
    return None


def add_observations(moments: Any, observation: Any) -> Any:
    """Add one iteration's observations to the moments of every part."""
    if isinstance(moments, dict):
        return {name: add_observations(part, observation[name]) for name, part in moments.items()}
    return None if moments is None else moments.add(observation)


def standardized(moments: Any, observation: Any) -> Any:
    """Observations standardised with running moments; images and discrete parts stay unchanged."""
    if isinstance(moments, dict):
        return {name: standardized(part, observation[name]) for name, part in moments.items()}
    if moments is None:
        return observation
    return jnp.clip((observation - moments.mean) / moments.std(), -LIMIT, LIMIT)


def running_returns(start: jax.Array, trajectory: Transition, gamma: float) -> tuple[jax.Array, jax.Array]:
    """The running return to continue from, and the discounted return of the episode so far after every step."""
    not_done = 1.0 - (trajectory.terminated | trajectory.truncated)

    def forwards(total: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, not_done = x
        total = gamma * total + reward
        return total * not_done, total

    return jax.lax.scan(forwards, start, (trajectory.reward, not_done), unroll=16)
