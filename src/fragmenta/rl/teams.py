"""Arrays of teams, whose last axis (but for features) is the agents."""

import jax
import jax.numpy as jnp


def mask_absent(alive: jax.Array, x: jax.Array) -> jax.Array:
    """Zero the entries of agents that dropped out, so that garbage in them has no effect."""
    return jnp.where(alive.reshape(*alive.shape, *[1] * (x.ndim - alive.ndim)), x, 0.0)


def mean_present(alive: jax.Array, x: jax.Array) -> jax.Array:
    """The mean over the entries of agents that are active."""
    return jnp.sum(mask_absent(alive, x)) / jnp.maximum(jnp.sum(alive, dtype=jnp.float32), 1.0)


def for_each_agent(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Repeat `x` for every agent, on a new last axis."""
    return jax.lax.broadcast_in_dim(x, shape, tuple(range(x.ndim)))


def joint_observation(observation: jax.Array) -> jax.Array:
    """The observations of all agents, concatenated."""
    return observation.reshape(*observation.shape[:-2], -1)
