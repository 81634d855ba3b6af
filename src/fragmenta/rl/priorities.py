"""Priorities of the rows of a replay (Schaul et al., 2016), per environment.

A tree of sums with eight children per node: a draw goes down seven levels for a million rows, where a binary tree has
twenty, with an operation over the children on each.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

CHILDREN = 8
"""Of each node of the tree."""


class Priorities(NamedTuple):
    """What the probability of every row is proportional to, within its environment."""

    levels: tuple[jax.Array, ...]
    """By environment, node and child: the priorities of the rows, 0 for those that must not be drawn, then the sums of
    these nodes as the children of others, and so on up to one node."""
    largest: jax.Array
    """The largest so far, per environment; new steps get it."""

    @property
    def rows(self) -> jax.Array:
        """The priorities of the rows, and zeros after the last; environments first."""
        return self.levels[0].reshape(len(self.largest), -1)


def no_priorities(length: int, envs: int) -> Priorities:
    """No row may be drawn yet."""
    nodes = [-(-length // CHILDREN)]
    while nodes[-1] > 1:
        nodes.append(-(-nodes[-1] // CHILDREN))
    return Priorities(tuple(jnp.zeros((envs, count, CHILDREN)) for count in nodes), jnp.ones(envs))


def add_rows(
    priorities: Priorities, position: jax.Array, filled: jax.Array, count: int, incomplete: int, length: int
) -> Priorities:
    """After `count` rows were written at `position`, with `filled` before them: the newest `incomplete` ones must not
    be drawn yet, and as many before them, if there are any, may be from now on."""
    number = jnp.arange(count + incomplete)
    row = (position[:, None] - incomplete + number) % length
    may_be_drawn = (number < count) & (number >= incomplete - filled[:, None])
    new = may_be_drawn * priorities.largest[:, None]
    return priorities._replace(levels=jax.vmap(_write)(priorities.levels, row, new))


def set_rows(priorities: Priorities, rows: jax.Array, values: jax.Array) -> Priorities:
    """New priorities for the rows in each environment's column."""
    levels = jax.vmap(_write, in_axes=(0, 1, 1))(priorities.levels, rows, values)
    return Priorities(levels, jnp.maximum(priorities.largest, jnp.max(values, axis=0)))


def _write(levels: tuple[jax.Array, ...], index: jax.Array, value: jax.Array) -> tuple[jax.Array, ...]:
    written = []
    for level in levels:
        node = index // CHILDREN
        changed = level.at[node, index % CHILDREN].set(value)
        index, value = node, jnp.sum(changed[node], axis=1)
        written.append(changed)
    return tuple(written)


def draw_rows(priorities: Priorities, keys: jax.Array, per_env: int) -> tuple[jax.Array, jax.Array]:
    """Draw rows of every environment with its key, and the probability of each within its environment."""

    def one(levels: tuple[jax.Array, ...], key: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = jnp.sum(levels[-1])
        # One draw from each of `per_env` equal parts of the sum, as is usual, so that a batch is more even.
        target = (jnp.arange(per_env) + jax.random.uniform(key, (per_env,))) / per_env * total
        node, likelihood = jnp.zeros(per_env, jnp.int32), jnp.zeros(per_env)
        for level in reversed(levels):
            children = level[node]
            ends = jnp.cumsum(children, axis=1)
            child = _first_above(ends, children, target)[:, None]
            likelihood = jnp.take_along_axis(children, child, axis=1)[:, 0]
            target = target - jnp.take_along_axis(ends, child, axis=1)[:, 0] + likelihood
            node = node * CHILDREN + child[:, 0]
        # The first row if none may be drawn: the last child of the last node may be none.
        return jnp.where(total > 0, node, 0), likelihood / jnp.maximum(total, 1e-12)

    return jax.vmap(one, out_axes=1)(priorities.levels, keys)


def _first_above(ends: jax.Array, parts: jax.Array, target: jax.Array) -> jax.Array:
    """The first part whose end is above the target; never an empty one, unless all are."""
    fits = (ends > target[:, None]) & (parts > 0)
    # Rounding may leave no end above the target: then it is the last part that is not empty.
    last = parts.shape[-1] - 1 - jnp.argmax(parts[:, ::-1] > 0, axis=-1)
    return jnp.where(jnp.any(fits, axis=-1), jnp.argmax(fits, axis=-1), last)
