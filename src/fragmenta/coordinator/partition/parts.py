"""Parts of arrays: cut out, joined, and exchanged among replicas."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split
from fragmenta.tracing.jaxprs import key_dtype


class Replica(NamedTuple):
    """One of `parts` replicas, while its program is traced: its number, and the name of the axis that they meet on."""

    parts: int
    index: Any
    axis: str | None


def convert(x: Any, now: Layout, wanted: Layout, replica: Replica) -> Any:
    """What a replica has of a value, from one layout to another."""
    if now == wanted:
        return x
    if wanted == PARTIAL:
        x = convert(x, now, WHOLE, replica)
        return jnp.where(replica.index == 0, x, jnp.zeros_like(x))
    if now == PARTIAL:
        x = jax.lax.psum(x, replica.axis)
    elif isinstance(now, Split):
        x = gather(x, now, replica)
    return part(x, wanted, replica.parts, replica.index) if isinstance(wanted, Split) else x


def meets(now: Layout, wanted: Layout) -> bool:
    """Whether replicas must exchange something to convert."""
    return now not in (wanted, WHOLE)


def part(x: Any, split: Split, parts: int, index: Any) -> Any:
    """Of a whole array the part of replica `index`."""
    if key_dtype(x.dtype):
        return _wrapped(part(jax.random.key_data(x), split, parts, index), x)
    size = x.shape[split.dim] // (split.outer * parts)
    apart = _unfold(x, split)
    apart = jax.lax.dynamic_slice_in_dim(apart, index * size, size, split.dim + (split.outer > 1))
    return _fold(apart, split)


def parts_of(x: Any, split: Split, parts: int) -> list[Any]:
    """A whole array cut into the parts of all replicas; works on arrays of numpy as well."""
    apart = _unfold(x, split)
    at = split.dim + (split.outer > 1)
    size = apart.shape[at] // parts
    cuts = (
        tuple(slice(None) if d != at else slice(i * size, (i + 1) * size) for d in range(at + 1)) for i in range(parts)
    )
    return [_fold(apart[cut], split) for cut in cuts]


def joined(arrays: Sequence[Any], split: Split) -> Any:
    """The whole array from the parts of all replicas."""
    return _fold(jnp.concatenate([_unfold(x, split) for x in arrays], split.dim + (split.outer > 1)), split)


def gather(x: Any, split: Split, replica: Replica) -> Any:
    """The whole array from this replica's part and those of the others."""
    if key_dtype(x.dtype):
        return _wrapped(gather(jax.random.key_data(x), split, replica), x)
    if x.dtype == jnp.bool_:
        return gather(x.astype(jnp.uint8), split, replica).astype(jnp.bool_)
    apart = jax.lax.all_gather(_unfold(x, split), replica.axis, axis=split.dim + (split.outer > 1), tiled=True)
    return _fold(apart, split)


def folded_shape(shape: tuple[int, ...], split: Split) -> tuple[tuple[int, ...], int]:
    """A shape in which one dimension alone is cut into parts, and which that is."""
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
