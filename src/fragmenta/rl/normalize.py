"""Running statistics by which observations and rewards are brought to one scale."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs import Box, Dict, Space, Transition

LIMIT = 10.0
"""How many standard deviations a normalised number may be from zero."""


class Moments(NamedTuple):
    """Of all numbers seen so far: how many, their mean, and the sum of squared differences from it."""

    number: jax.Array
    mean: jax.Array
    squares: jax.Array

    def add(self, x: jax.Array) -> "Moments":
        """With those of one iteration, its time and environments in front (Chan et al., 1979)."""
        x, count = x.astype(jnp.float32), x.shape[0] * x.shape[1]
        # Differences from a mean, and from the new numbers' own mean where they are squared: what is added is small.
        shift = jnp.sum(x - self.mean, axis=(0, 1)) / count
        squares = jnp.sum((x - (self.mean + shift)) ** 2, axis=(0, 1))
        total = self.number + count
        share = count / total
        squares = self.squares + squares + shift**2 * self.number * share
        return Moments(total, self.mean + shift * share, squares)

    def std(self) -> jax.Array:
        """The standard deviation, or 1 where nothing has differed yet."""
        variance = jnp.where(self.squares > 0, self.squares / jnp.maximum(self.number, 1.0), 1.0)
        return jnp.sqrt(variance + 1e-8)


class Normalizer(NamedTuple):
    """What is known of an environment's numbers; nothing of what is not normalised."""

    observation: Any = None
    """Moments per part of the observation, None for parts that are no plain numbers."""
    reward: Moments | None = None
    """Of the running return, because its spread is what the value function has to follow."""
    running_return: jax.Array | None = None
    """Per environment: the discounted rewards of its episode so far."""


def no_moments(space: Space) -> Any:
    """Moments of nothing seen yet, for every part of a space that is plain numbers."""
    if isinstance(space, Dict):
        return {name: no_moments(part) for name, part in space.spaces}
    if isinstance(space, Box) and not space.is_image:
        zeros = jnp.zeros(space.shape)
        return Moments(jnp.zeros(()), zeros, zeros)
    return None


def add_observations(moments: Any, observation: Any) -> Any:
    """The moments of every part with one iteration's observations added."""
    if isinstance(moments, dict):
        return {name: add_observations(part, observation[name]) for name, part in moments.items()}
    return None if moments is None else moments.add(observation)


def standardized(moments: Any, observation: Any) -> Any:
    """Observations with mean 0 and standard deviation 1 in every entry, as far as known; pictures as they are."""
    if isinstance(moments, dict):
        return {name: standardized(part, observation[name]) for name, part in moments.items()}
    if moments is None:
        return observation
    return jnp.clip((observation - moments.mean) / moments.std(), -LIMIT, LIMIT)


def running_returns(start: jax.Array, trajectory: Transition, gamma: float) -> tuple[jax.Array, jax.Array]:
    """What follows the last step, and after every step the discounted rewards of the episode so far."""
    goes_on = 1.0 - (trajectory.terminated | trajectory.truncated)

    def forwards(so_far: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, goes_on = x
        so_far = gamma * so_far + reward
        return so_far * goes_on, so_far

    return jax.lax.scan(forwards, start, (trajectory.reward, goes_on), unroll=16)
