"""Reading and writing by index: constant, computed, permuted, repeated and out of bounds."""

import jax
import jax.numpy as jnp
from jax import lax

from partition.table import INT, NUMBERS, PLAIN, along_axes, another, entries, rows, to_front


def _at(x, axis, where):
    """x[..., where, ...] with the index at dimension `axis`."""
    return x[tuple(where if i == axis else slice(None) for i in range(x.ndim))]


def _scattered(write, clip=False):
    """Write the rows of x at the indices in `index`, one per environment, into a copy of x."""

    def apply(x, index, d):
        moved = to_front(x, d)
        where = jnp.clip(index, 0, x.shape[d] - 1) if clip else index
        return write(moved, where)

    return apply


def _distinct(index):
    """A permutation that depends on the values of the index."""
    return jnp.argsort(index, stable=True)


def _picked(x, index, d):
    """One element of the row of each environment, like the value of the chosen action."""
    table = rows(x, d)
    return table[jnp.arange(x.shape[d]), index % table.shape[1]]


SLICES = along_axes(
    {
        "first": lambda x, axis: _at(x, axis, 0),
        "last": lambda x, axis: _at(x, axis, -1),
        "middle": lambda x, axis: _at(x, axis, x.shape[axis] // 2),
        "every second": lambda x, axis: _at(x, axis, slice(None, None, 2)),
        "without the first": lambda x, axis: _at(x, axis, slice(min(1, x.shape[axis] - 1), None)),
        "without the last": lambda x, axis: _at(x, axis, slice(None, -1)) if x.shape[axis] > 1 else x,
        "backwards": lambda x, axis: _at(x, axis, slice(None, None, -1)),
        "by a list": lambda x, axis: _at(x, axis, jnp.array([0, -1, 0])),
        "take": lambda x, axis: jnp.take(x, jnp.array([0, 0, 1]), axis=axis, mode="clip"),
        "take wrapping": lambda x, axis: jnp.take(x, jnp.array([-1, 7, 2]), axis=axis, mode="wrap"),
        "dynamic_slice_in_dim": lambda x, axis: lax.dynamic_slice_in_dim(
            x, jnp.argmax(x) % x.shape[axis], (x.shape[axis] + 1) // 2, axis
        ),
        "dynamic_index_in_dim": lambda x, axis: lax.dynamic_index_in_dim(
            x, jnp.count_nonzero(x) % x.shape[axis], axis, keepdims=False
        ),
        "dynamic_update_slice": lambda x, axis: lax.dynamic_update_slice_in_dim(
            x, lax.slice_in_dim(x, 0, 1, axis=axis), jnp.count_nonzero(x) // 2, axis
        ),
        "dynamic_update_index": lambda x, axis: lax.dynamic_update_index_in_dim(
            x, _at(x, axis, 0), jnp.count_nonzero(x) % x.shape[axis], axis
        ),
        "take_along_axis": lambda x, axis: jnp.take_along_axis(x, jnp.argsort(x, axis=axis), axis=axis),
        "take_along_axis of the best": lambda x, axis: jnp.take_along_axis(
            x, jnp.argmax(x, axis=axis, keepdims=True), axis=axis
        ),
        "set the first": lambda x, axis: x.at[tuple(0 if i == axis else slice(None) for i in range(x.ndim))].set(
            _at(x, axis, -1)
        ),
        "set every second": lambda x, axis: x.at[
            tuple(slice(None, None, 2) if i == axis else slice(None) for i in range(x.ndim))
        ].set(x[(0,) * x.ndim]),
    },
    kinds=PLAIN,
    exact=True,
    jumps=True,
    smooth=False,
)

READS = entries(
    {
        "by an index each": lambda x, index, d: to_front(x, d)[index],
        "by a permutation": lambda x, index, d: to_front(x, d)[_distinct(index)],
        "undone permutation": lambda x, index, d: to_front(x, d)[_distinct(index)][jnp.argsort(_distinct(index))],
        "an element of each row": _picked,
        "an element of each row, along the axis": lambda x, index, d: jnp.take_along_axis(
            rows(x, d), (index % rows(x, d).shape[1])[:, None], axis=1
        )[:, 0],
        "take with fill": lambda x, index, d: jnp.take(x, index, axis=d, mode="clip"),
        "get with fill": lambda x, index, d: to_front(x, d).at[index].get(mode="fill", fill_value=0),
        "from a shared table": lambda x, index, d: jnp.arange(12.0).reshape(6, 2)[index % 6],
        "look-up by vmap": lambda x, index, d: jax.vmap(lambda row, i: row[i % row.shape[0]])(rows(x, d), index),
        "dynamic slice by vmap": lambda x, index, d: jax.vmap(
            lambda row, i: lax.dynamic_slice(row, (i % row.shape[0],), (1,))
        )(rows(x, d), index),
        "pairs of indices": lambda x, index, d: rows(x, d)[index, index % rows(x, d).shape[1]],
        "outer indices": lambda x, index, d: rows(x, d)[index[:, None], jnp.array([0, 0])[None]],
        "two-dimensional look-up": lambda x, index, d: to_front(x, d)[jnp.stack([index, index[::-1]])],
        "masked by where": lambda x, index, d: jnp.where((index % 2 == 0)[:, None], rows(x, d), 0),
    },
    kinds=PLAIN,
    second="index",
    exact=True,
    smooth=False,
)

WRITES = entries(
    {
        "set at a permutation": lambda x, index, d: (
            jnp.zeros_like(to_front(x, d)).at[_distinct(index)].set(to_front(x, d))
        ),
        "set by arange": lambda x, index, d: to_front(x, d).at[jnp.arange(x.shape[d])].set(to_front(x, d)[::-1]),
        "set an element of each row": lambda x, index, d: (
            rows(x, d).at[jnp.arange(x.shape[d]), index % rows(x, d).shape[1]].set(7)
        ),
        "add at repeated indices": _scattered(lambda m, i: m.at[i].add(m), clip=True),
        "add out of bounds": _scattered(lambda m, i: m.at[i].add(m, mode="drop")),
        "subtract at indices": _scattered(lambda m, i: m.at[i].subtract(1), clip=True),
        "multiply at indices": _scattered(lambda m, i: m.at[i].multiply(2)),
        "min at indices": _scattered(lambda m, i: m.at[i].min(m[::-1])),
        "max at indices": _scattered(lambda m, i: m.at[i].max(m[::-1]), clip=True),
        "apply at indices": _scattered(lambda m, i: m.at[_distinct(i)].apply(lambda a: a + 1)),
        "a ring buffer": lambda x, index, d: (
            jnp.zeros((5, *to_front(x, d).shape), x.dtype).at[index % 5, jnp.arange(x.shape[d])].set(to_front(x, d))
        ),
        "into a shared table": lambda x, index, d: (
            jnp.zeros((4, rows(x, d).shape[1]), x.dtype).at[index % 4].add(rows(x, d))
        ),
        "segment_sum": lambda x, index, d: jax.ops.segment_sum(rows(x, d), index % 3, num_segments=3),
        "segment_max": lambda x, index, d: jax.ops.segment_max(rows(x, d), index % 2, num_segments=2),
        "segment_min per environment": lambda x, index, d: (
            jnp.full((x.shape[d],), 9, x.dtype).at[jnp.abs(index) % x.shape[d]].min(rows(x, d)[:, 0])
        ),
    },
    kinds=NUMBERS,
    second="index",
    smooth=False,
)

COUNTS = (
    *entries(
        {
            "bincount": lambda x, index, d: jnp.bincount(jnp.abs(index), length=5),
            "bincount with weights": lambda x, index, d: jnp.bincount(
                jnp.abs(index), weights=rows(x, d)[:, 0], length=3
            ),
            "one_hot of an index": lambda x, index, d: jax.nn.one_hot(index, x.shape[d]),
            "one_hot chosen": lambda x, index, d: jnp.sum(jax.nn.one_hot(index % 3, 3) * rows(x, d)[:, :1], axis=0),
        },
        second="index",
        kinds=NUMBERS,
        smooth=False,
    ),
    *entries(
        {
            "searchsorted": lambda x, d: jnp.searchsorted(jnp.array([-1.0, -0.2, 0.41, 0.9]), x),
            "searchsorted in the environments": lambda x, d: jnp.searchsorted(
                jnp.sort(rows(x, d)[:, 0]), jnp.array([-0.3, 0.8])
            ),
            "digitize": lambda x, d: jnp.digitize(x, jnp.array([-0.5, 0.13, 0.77])),
            "histogram": lambda x, d: jnp.histogram(x, bins=4, range=(-2.0, 2.0))[0],
            "one_hot": lambda x, d: jax.nn.one_hot(jnp.clip(jnp.abs(x) * 3, 0, 3).astype(jnp.int32), 4),
            "one_hot along another": lambda x, d: jax.nn.one_hot((jnp.abs(x) * 3).astype(jnp.int32), 4, axis=d),
            "interp": lambda x, d: jnp.interp(x, jnp.array([-1.0, 0.0, 2.0]), jnp.array([3.0, 1.0, 2.0])),
            "embedding": lambda x, d: jnp.sin(jnp.arange(12.0)).reshape(4, 3)[(jnp.abs(x) * 3).astype(jnp.int32) % 4],
            "compress by where": lambda x, d: jnp.where(x > 0.21, x, 0).sum(axis=another(x, d)),
        },
        exact=True,
        jumps=True,
        smooth=False,
    ),
    *entries(
        {
            "embedding of integers": lambda x, d: jnp.cos(jnp.arange(15.0)).reshape(5, 3)[x % 5],
            "one_hot of integers": lambda x, d: jax.nn.one_hot(x % 4, 4),
            "bits unpacked": lambda x, d: jnp.unpackbits(x.astype(jnp.uint8), axis=d),
            "isin": lambda x, d: jnp.isin(x, jnp.array([0, 2, 3])),
        },
        kinds=(INT,),
        exact=True,
        smooth=False,
    ),
)

INDEXING = SLICES + READS + WRITES + COUNTS
