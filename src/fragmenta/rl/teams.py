"""Arrays of teams, whose last axis (but for features) is the agents."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class TeamView(NamedTuple):
    """What the agents of a team observe, with a row per agent, and which of them are active."""

    observation: Any
    alive: jax.Array


def mask_absent(alive: jax.Array, x: jax.Array) -> jax.Array:
    """Zero the entries of agents that dropped out, so that garbage in them has no effect."""
    return jnp.where(alive.reshape(*alive.shape, *[1] * (x.ndim - alive.ndim)), x, jnp.zeros((), x.dtype))


def present(alive: jax.Array, tree: Any) -> Any:
    """Arrays in which the entries of agents that dropped out are zero."""
    return jax.tree.map(lambda x: mask_absent(alive, x), tree)


def mean_present(alive: jax.Array, x: jax.Array) -> jax.Array:
    """The mean over the entries of agents that are active."""
    return jnp.sum(mask_absent(alive, x)) / jnp.maximum(jnp.sum(alive, dtype=jnp.float32), 1.0)


def for_each_agent(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Repeat `x` for every agent, on a new last axis."""
    return jax.lax.broadcast_in_dim(x, shape, tuple(range(x.ndim)))


def joint(rows: jax.Array) -> jax.Array:
    """The vectors of all agents, such as their observations, concatenated."""
    return rows.reshape(*rows.shape[:-2], -1)


def beside_joint(rows: jax.Array, everything: jax.Array) -> jax.Array:
    """The vector of each agent, followed by one that all share."""
    shared = for_each_agent(jnp.moveaxis(everything, -1, 0), (everything.shape[-1], *rows.shape[:-1]))
    return jnp.concatenate([rows, jnp.moveaxis(shared, 0, -1)], axis=-1)


def keys_of_agents(keys: jax.Array, agents: int) -> jax.Array:
    """A key for every agent of every environment, from the environment's key and the agent's index."""
    return jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys, jnp.arange(agents))
