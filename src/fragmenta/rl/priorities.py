"""Priorities of the rows of a replay (Schaul et al., 2016), per environment.

Instead of a tree of sums, the rows are in blocks whose sums are kept: drawing finds the block and then the row in it
with two wide operations, where a tree of a million rows needs twenty narrow ones.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Priorities(NamedTuple):
    """What the probability of every row is proportional to, within its environment."""

    rows: jax.Array
    """By environment, block, and row in the block; 0 for rows that must not be drawn."""
    sums: jax.Array
    """Of each environment's blocks."""
    largest: jax.Array
    """The largest so far, per environment; new steps get it."""


def no_priorities(length: int, envs: int) -> Priorities:
    """No row may be drawn yet."""
    size = 2 ** math.ceil(math.log2(max(length, 1)) / 2)
    blocks = -(-length // size)
    return Priorities(jnp.zeros((envs, blocks, size)), jnp.zeros((envs, blocks)), jnp.ones(envs))


def add_rows(
    priorities: Priorities, position: jax.Array, filled: jax.Array, count: int, incomplete: int, length: int
) -> Priorities:
    """After `count` rows were written at `position`, with `filled` before them: the newest `incomplete` ones must not
    be drawn yet, and as many before them, if there are any, may be from now on."""
    number = jnp.arange(count + incomplete)
    row = (position - incomplete + number) % length
    may_be_drawn = (number < count) & (number >= incomplete - filled)
    new = may_be_drawn * priorities.largest[:, None]
    write = jax.vmap(_write, in_axes=(0, 0, None, 0))
    rows, sums = write(priorities.rows, priorities.sums, row, new)
    return priorities._replace(rows=rows, sums=sums)


def set_rows(priorities: Priorities, rows: jax.Array, values: jax.Array) -> Priorities:
    """New priorities for the rows in each environment's column."""
    new_rows, sums = jax.vmap(_write, in_axes=(0, 0, 1, 1))(priorities.rows, priorities.sums, rows, values)
    return Priorities(new_rows, sums, jnp.maximum(priorities.largest, jnp.max(values, axis=0)))


def _write(rows: jax.Array, sums: jax.Array, row: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
    block, offset = row // rows.shape[1], row % rows.shape[1]
    rows = rows.at[block, offset].set(value)
    return rows, sums.at[block].set(jnp.sum(rows[block], axis=1))


def draw_rows(priorities: Priorities, keys: jax.Array, per_env: int) -> tuple[jax.Array, jax.Array]:
    """Draw rows of every environment with its key, and the probability of each within its environment."""

    def one(rows: jax.Array, sums: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        ends = jnp.cumsum(sums)
        # One draw from each of `per_env` equal parts of the sum, as is usual, so that a batch is more even.
        target = (jnp.arange(per_env) + jax.random.uniform(key, (per_env,))) / per_env * ends[-1]
        block = _first_above(ends[None], sums[None], target)
        within = rows[block]
        row = _first_above(jnp.cumsum(within, axis=-1), within, target - (ends - sums)[block])
        likelihood = jnp.take_along_axis(within, row[:, None], axis=-1)[:, 0] / jnp.maximum(ends[-1], 1e-12)
        return block * rows.shape[1] + row, likelihood

    return jax.vmap(one, out_axes=1)(priorities.rows, priorities.sums, keys)


def _first_above(ends: jax.Array, parts: jax.Array, target: jax.Array) -> jax.Array:
    """The first part whose end is above the target; never an empty one, unless all are."""
    fits = (ends > target[:, None]) & (parts > 0)
    # Rounding may leave no end above the target: then it is the last part that is not empty.
    last = parts.shape[-1] - 1 - jnp.argmax(parts[:, ::-1] > 0, axis=-1)
    return jnp.where(jnp.any(fits, axis=-1), jnp.argmax(fits, axis=-1), last)
