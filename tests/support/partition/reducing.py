"""Reductions over the environments, another dimension, or all dimensions; and cumulative operations."""

import jax
import jax.numpy as jnp
from jax import lax

from partition.table import BOOL, FLOAT, INT, NUMBERS, PLAIN, along_axes, another, entries, with_all


def _spoiled(x):
    """x with NaN in place of large elements and minus infinity in place of small ones."""
    return jnp.where(x > 1.2, jnp.nan, jnp.where(x < -1.2, -jnp.inf, x))


def _affine(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


REDUCTIONS = (
    *with_all(
        {
            "sum": lambda x, axis: jnp.sum(x, axis=axis),
            "mean": lambda x, axis: jnp.mean(x, axis=axis),
            "prod": lambda x, axis: jnp.prod(1 + 0.1 * x, axis=axis),
        },
        kinds=NUMBERS,
    ),
    *with_all(
        {
            "var": lambda x, axis: jnp.var(x, axis=axis),
            "std": lambda x, axis: jnp.sqrt(jnp.var(x, axis=axis) + 0.1),
            "logsumexp": lambda x, axis: jax.nn.logsumexp(x, axis=axis),
            "norm": lambda x, axis: jnp.linalg.norm(x.ravel() if axis is None else x, axis=axis),
            "average with weights": lambda x, axis: jnp.average(x, axis=axis, weights=jnp.abs(x) + 0.1),
            "sum kept": lambda x, axis: x - jnp.sum(x, axis=axis, keepdims=True),
            "softmax": lambda x, axis: jax.nn.softmax(x, axis=axis),
            "standardize": lambda x, axis: jax.nn.standardize(x, axis=axis, epsilon=0.1),
            "normalize by mean and deviation": lambda x, axis: (
                (x - jnp.mean(x, axis, keepdims=True)) / (jnp.std(x + 0.01 * x * x, axis, keepdims=True) + 0.1)
            ),
        },
        smooth=True,
    ),
    *along_axes({"log_softmax": lambda x, axis: jax.nn.log_softmax(x, axis=axis)}),
    *with_all(
        {
            "max": lambda x, axis: jnp.max(x, axis=axis),
            "min": lambda x, axis: jnp.min(x, axis=axis),
        },
        kinds=NUMBERS,
        exact=True,
        smooth=False,
    ),
    *with_all(
        {
            "ptp": lambda x, axis: jnp.ptp(x, axis=axis),
            "median": lambda x, axis: jnp.median(x, axis=axis),
            "quantile": lambda x, axis: jnp.quantile(x, 0.3, axis=axis),
            "nanmean": lambda x, axis: jnp.nanmean(jnp.where(x > 1.2, jnp.nan, x).at[..., 0].set(1), axis=axis),
        },
        smooth=False,
    ),
    *with_all(
        {
            "argmax": lambda x, axis: jnp.argmax(x, axis=axis),
            "argmin": lambda x, axis: jnp.argmin(x, axis=axis),
            "count_nonzero": lambda x, axis: jnp.count_nonzero(x > 0.3, axis=axis),
            "any": lambda x, axis: jnp.any(x > 1.2, axis=axis),
            "all": lambda x, axis: jnp.all(x > -1.2, axis=axis),
        },
        kinds=NUMBERS,
        exact=True,
        jumps=True,
        smooth=False,
    ),
    *with_all(
        {
            "max of NaN": lambda x, axis: jnp.stack([jnp.max(_spoiled(x), axis=axis), jnp.max(x, axis=axis)]),
            "min of infinity": lambda x, axis: jnp.min(jnp.where(x > 1.2, jnp.inf, -x), axis=axis),
            "nanmax": lambda x, axis: jnp.nanmax(jnp.where(x > 1.2, jnp.nan, x), axis=axis, initial=-3.0),
        },
        exact=True,
        jumps=True,
        smooth=False,
    ),
    *with_all(
        {
            "any of flags": lambda x, axis: jnp.any(x, axis=axis),
            "all of flags": lambda x, axis: jnp.all(x, axis=axis),
            "sum of flags": lambda x, axis: jnp.sum(x, axis=axis),
        },
        kinds=(BOOL,),
        exact=True,
        smooth=False,
    ),
    *with_all(
        {
            "bitwise or reduced": lambda x, axis: jnp.bitwise_or.reduce(x, axis=axis),
            "bitwise xor reduced": lambda x, axis: lax.reduce_xor(x, tuple(range(x.ndim)) if axis is None else (axis,)),
            "bitwise and reduced": lambda x, axis: lax.reduce_and(x, tuple(range(x.ndim)) if axis is None else (axis,)),
        },
        kinds=(INT,),
        exact=True,
        smooth=False,
    ),
    *entries(
        {
            "sum over two": lambda x, d: jnp.sum(x, axis=tuple({d, another(x, d)})),
            "variance with masks": lambda x, d: jnp.var(x, axis=d, where=jnp.arange(x.shape[-1]) % 2 == 0),
            "custom reduce": lambda x, d: lax.reduce(x, jnp.zeros((), x.dtype), lambda a, b: a + b - 0.0, (d,)),
            "mean of a part": lambda x, d: jnp.sum(jnp.where(x > 0, x, 0), d) / (1 + jnp.sum(jax.nn.relu(x), d)),
        },
        smooth=False,
        ranks=(1, 4),
    ),
)

CUMULATIVE = (
    *along_axes(
        {
            "cumsum": lambda x, axis: jnp.cumsum(x, axis=axis),
            "cumprod": lambda x, axis: jnp.cumprod(1 + 0.1 * x, axis=axis),
            "cumsum from the end": lambda x, axis: lax.cumsum(x, axis, reverse=True),
            "difference": lambda x, axis: jnp.diff(jnp.concatenate([x, x[:1] if axis == 0 else x], axis), axis=axis),
        },
        kinds=NUMBERS,
    ),
    *along_axes(
        {
            "cumlogsumexp": lambda x, axis: lax.cumlogsumexp(x, axis),
            "affine associative_scan": lambda x, axis: lax.associative_scan(_affine, (0.5 * x, x), axis=axis),
            "associative_scan from the end": lambda x, axis: lax.associative_scan(jnp.add, x, reverse=True, axis=axis),
        },
    ),
    *along_axes(
        {
            "cummax": lambda x, axis: lax.cummax(x, axis),
            "cummin from the end": lambda x, axis: lax.cummin(x, axis, reverse=True),
        },
        kinds=NUMBERS,
        exact=True,
        smooth=False,
    ),
    *along_axes(
        {"cumulative or": lambda x, axis: lax.associative_scan(jnp.logical_or, x, axis=axis)},
        kinds=(BOOL,),
        exact=True,
        smooth=False,
    ),
)

SORTING = (
    *along_axes(
        {
            "sort": lambda x, axis: jnp.sort(x, axis=axis),
            "sort descending": lambda x, axis: jnp.sort(x, axis=axis, descending=True),
        },
        kinds=PLAIN,
        exact=True,
        smooth=False,
    ),
    *along_axes(
        {
            "argsort": lambda x, axis: jnp.argsort(x, axis=axis, stable=True),
            "sort with a companion": lambda x, axis: lax.sort((x, -x * x), dimension=axis, num_keys=1),
            "partition": lambda x, axis: jnp.partition(x, x.shape[axis] // 2, axis=axis).max(axis=axis),
            "rank": lambda x, axis: jnp.argsort(jnp.argsort(x, axis=axis), axis=axis),
        },
        kinds=(FLOAT, INT),
        exact=True,
        jumps=True,
        smooth=False,
    ),
    *along_axes(
        {"top_k": lambda x, axis: lax.top_k(jnp.moveaxis(x, axis, -1), min(2, x.shape[axis]))},
        exact=True,
        jumps=True,
        smooth=False,
    ),
    *entries(
        {
            "lexsort": lambda x, d: jnp.lexsort((x.ravel(), jnp.abs(x).ravel() > 0.5)),
            "unique": lambda x, d: jnp.unique(jnp.round(x), size=5, fill_value=-7),
            "unique with counts": lambda x, d: jnp.unique(jnp.round(x), size=5, fill_value=-7, return_counts=True),
            "nonzero": lambda x, d: jnp.nonzero(x > 0.1, size=3, fill_value=0),
        },
        exact=True,
        jumps=True,
        smooth=False,
    ),
)
