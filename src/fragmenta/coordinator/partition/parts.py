"""Parts of arrays: slicing, joining, and exchanging them among replicas."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split
from fragmenta.tracing.jaxprs import key_dtype


class Replica(NamedTuple):
    """One of `parts` replicas, while its program is traced: its index, and the name of the axis for collectives."""

    parts: int
    index: Any
    axis: str | None


def convert(x: Any, now: Layout, target: Layout, replica: Replica) -> Any:
    """Convert a replica's part of a value from one layout to another."""
    if now == target:
        return x
    if target == PARTIAL:
        x = convert(x, now, WHOLE, replica)
        return jnp.where(replica.index == 0, x, jnp.zeros_like(x))
    if now == PARTIAL:
        x = jax.lax.psum(x, replica.axis)
    elif isinstance(now, Split):
        x = gather(x, now, replica)
    return part(x, target, replica.parts, replica.index) if isinstance(target, Split) else x


def needs_exchange(now: Layout, target: Layout) -> bool:
    """Whether converting between these layouts needs communication."""
    return now not in (target, WHOLE)


def part(x: Any, split: Split, parts: int, index: Any) -> Any:
    """The part of replica `index` of a whole array."""
    if key_dtype(x.dtype):
        return _wrapped(part(jax.random.key_data(x), split, parts, index), x)
    size = x.shape[split.dim] // (split.outer * parts)
    unfolded = _unfold(x, split)
    unfolded = jax.lax.dynamic_slice_in_dim(unfolded, index * size, size, split.dim + (split.outer > 1))
    return _fold(unfolded, split)


def parts_of(x: Any, split: Split, parts: int) -> list[Any]:
    """A whole array, JAX or NumPy, as the list of all replicas' parts."""
    unfolded = _unfold(x, split)
    at = split.dim + (split.outer > 1)
    if isinstance(x, np.ndarray):
        return [_fold(cut, split) for cut in np.split(unfolded, parts, at)]
    sizes = [unfolded.shape[at] // parts] * parts
    return [_fold(cut, split) for cut in jax.lax.split(unfolded, sizes, at)]  # one operation, however many parts


def join_parts(arrays: Sequence[Any], split: Split) -> Any:
    """The whole array from the parts of all replicas; in host memory, if all of them are there as NumPy arrays."""
    concatenate: Any = np.concatenate if all(isinstance(x, np.ndarray) for x in arrays) else jnp.concatenate
    return _fold(concatenate([_unfold(x, split) for x in arrays], split.dim + (split.outer > 1)), split)


def sum_parts(arrays: Sequence[Any]) -> Any:
    """The whole array from partial sums of all replicas, added in their order."""
    add: Any = np.add if all(isinstance(x, np.ndarray) for x in arrays) else jax.lax.add  # `+` traces more slowly
    return functools.reduce(add, arrays)


def gather(x: Any, split: Split, replica: Replica) -> Any:
    """The whole array from this replica's part and those of the others."""
    if key_dtype(x.dtype):
        return _wrapped(gather(jax.random.key_data(x), split, replica), x)
    if x.dtype == jnp.bool_:
        return gather(x.astype(jnp.uint8), split, replica).astype(jnp.bool_)
    unfolded = jax.lax.all_gather(_unfold(x, split), replica.axis, axis=split.dim + (split.outer > 1), tiled=True)
    return _fold(unfolded, split)


def folded_shape(shape: tuple[int, ...], split: Split) -> tuple[tuple[int, ...], int]:
    """A shape in which the parts are contiguous along one dimension, and the index of that dimension."""
    if split.outer == 1:
        return shape, split.dim
    d = split.dim
    return (*shape[:d], split.outer, shape[d] // split.outer, *shape[d + 1 :]), d + 1


def _unfold(x: Any, split: Split) -> Any:
    return x if split.outer == 1 else x.reshape(folded_shape(x.shape, split)[0])


def _fold(x: Any, split: Split) -> Any:
    d = split.dim
    return x if split.outer == 1 else x.reshape(*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :])


def _wrapped(data: Any, like: Any) -> Any:
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
