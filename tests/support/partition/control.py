"""Loops and branches per environment, custom derivatives, Python callbacks, and sizes used as numbers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from partition.table import INT, NUMBERS, PLAIN, along_axes, another, entries, rows, to_front


def _halved(x):
    """Halve until small: a loop whose length can differ per environment."""
    return lax.while_loop(lambda a: jnp.max(jnp.abs(a)) > 0.5, lambda a: a * 0.5, x)


def _counted(x):
    return lax.while_loop(lambda c: c[1] < jnp.abs(x).astype(jnp.int32).max(), lambda c: (c[0] * 2, c[1] + 1), (x, 0))


@jax.custom_jvp
def _squared(x):
    return x * x


@_squared.defjvp
def _squared_jvp(primals, tangents):
    return _squared(primals[0]), 3.0 * primals[0] * tangents[0]


@jax.custom_vjp
def _total(x):
    return x - jnp.sum(x)


_total.defvjp(lambda x: (_total(x), x), lambda x, g: (g * jnp.max(x) + jnp.sum(g),))


@jax.custom_vjp
def _clipped(x):
    return jnp.sin(x)


_clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g, -0.1, 0.1) * jnp.cos(x),))


def _on_host(function, shape):
    def apply(x, d):
        return jax.pure_callback(
            lambda a: np.asarray(function(np.asarray(a), d), a.dtype),
            jax.ShapeDtypeStruct(shape(x, d), x.dtype),
            x,
            vmap_method="sequential",
        )

    return apply


def _without(x, d):
    return x.shape[:d] + x.shape[d + 1 :]


def _discounted(x, axis):
    """Discounted returns along a dimension."""
    moved = jnp.moveaxis(x, axis, 0)
    return lax.scan(lambda c, r: (r + 0.9 * c, r + 0.9 * c), jnp.zeros_like(moved[0]), moved, reverse=True)[1]


def _alternating(x, axis):
    """A branch that each row takes independently."""
    moved = jnp.moveaxis(x, axis, 0)
    return jax.vmap(lambda row: lax.cond(jnp.max(row) > 0.7312, jnp.sin, lambda a: a * 2, row))(moved)


LOOPS = (
    *along_axes({"discounted sums": _discounted}),
    *along_axes(
        {
            "a branch of each": _alternating,
            "a switch of each": lambda x, axis: jax.vmap(
                lambda row: lax.switch(jnp.argmax(row), [jnp.sin, jnp.cos, lambda a: a * 3], row)
            )(jnp.moveaxis(x, axis, 0)),
            "map with a branch": lambda x, axis: lax.map(
                lambda row: lax.cond(jnp.max(row) > 0.7312, jnp.sin, jnp.cos, row), jnp.moveaxis(x, axis, 0)
            ),
        },
        jumps=True,
    ),
    *along_axes(
        {
            "map": lambda x, axis: lax.map(lambda row: jnp.sin(row) * row.size, jnp.moveaxis(x, axis, 0)),
            "map in batches": lambda x, axis: lax.map(jnp.cos, jnp.moveaxis(x, axis, 0), batch_size=2),
            "running maximum by scan": lambda x, axis: lax.scan(
                lambda c, r: (jnp.maximum(c, r), c + r), jnp.moveaxis(x, axis, 0)[0], jnp.moveaxis(x, axis, 0)
            ),
            "fori_loop over": lambda x, axis: lax.fori_loop(
                0, x.shape[axis], lambda i, c: c * 0.5 + lax.dynamic_index_in_dim(x, i, axis, False), 0 * x.min(axis)
            ),
        },
        smooth=False,
    ),
    *along_axes(
        {
            "a while loop of each": lambda x, axis: jax.vmap(_halved)(jnp.moveaxis(x, axis, 0)),
            "a counted loop of each": lambda x, axis: jax.vmap(_counted)(3 * jnp.moveaxis(x, axis, 0)),
            "a while loop in a map": lambda x, axis: lax.map(_halved, jnp.moveaxis(x, axis, 0)),
        },
        jumps=True,
        smooth=False,
    ),
    *entries(
        {
            "a while loop for all": lambda x, d: _halved(x),
            "a branch for all": lambda x, d: lax.cond(jnp.max(x) > 1.1312, jnp.sin, jnp.cos, x),
            "a switch for all": lambda x, d: lax.switch(jnp.argmax(x) % 3, [jnp.sin, jnp.cos, jnp.tanh], x),
        },
        jumps=True,
        smooth=False,
    ),
)

DERIVATIVES = entries(
    {
        "custom_vjp that sums": lambda x, d: _total(x),
        "custom_vjp of each": lambda x, d: jax.vmap(_total)(rows(x, d)),
        "custom_vjp that clips": lambda x, d: _clipped(x),
    },
    forwards=False,
) + entries(
    {
        "custom_jvp": lambda x, d: _squared(x),
        "custom_jvp of each": lambda x, d: jax.vmap(_squared)(x),
        "grad inside": lambda x, d: jax.grad(lambda a: jnp.mean(jnp.sin(a) * a))(x),
        "grad of each": lambda x, d: jax.vmap(jax.grad(lambda a: jnp.sum(a**3)))(rows(x, d)),
        "grad of a sum over environments": lambda x, d: jax.grad(lambda a: jnp.sum(jnp.mean(a, d) ** 2))(x),
        "hessian product": lambda x, d: jax.jvp(jax.grad(lambda a: jnp.sum(jnp.sin(a))), (x,), (x,))[1],
        "jacobian": lambda x, d: jax.jacfwd(lambda w: jnp.tanh(rows(x, d) * w).sum(0))(jnp.ones(())),
        "checkpoint inside": lambda x, d: jax.checkpoint(lambda a: jnp.sin(jnp.cos(a)))(x),
    }
)

CALLS_OF_PYTHON = (
    *entries(
        {
            "pure_callback": _on_host(lambda a, d: np.flip(a, d), lambda x, d: x.shape),
            "pure_callback that takes the largest": _on_host(lambda a, d: np.max(a, d), _without),
        },
        kinds=NUMBERS,
        exact=True,
        smooth=False,
    ),
    *entries({"pure_callback that adds": _on_host(lambda a, d: np.sum(a, d), _without)}, smooth=False),
)

SIZES = (
    *entries(
        {
            "times the size": lambda x, d: x * x.shape[d],
            "filled with the size": lambda x, d: jnp.full((3,), x.shape[d]),
            "more than four": lambda x, d: x * (1.0 if x.shape[d] > 4 else 2.0),
            "numbered": lambda x, d: rows(x, d) + jnp.arange(x.shape[d])[:, None],
            "numbers alone": lambda x, d: jnp.arange(x.shape[d]),
            "iota": lambda x, d: lax.broadcasted_iota(jnp.int32, x.shape, d),
            "linspace": lambda x, d: rows(x, d) * jnp.linspace(0.5, 1.5, x.shape[d])[:, None],
            "eye": lambda x, d: jnp.eye(x.shape[d]) @ rows(x, d),
            "zeros of pairs": lambda x, d: jnp.zeros((x.shape[d], x.shape[d])) + rows(x, d)[:, :1],
            "ones like": lambda x, d: jnp.ones_like(x) * 3,
            "size of all": lambda x, d: x * x.size / 10,
            "a constant of that size": lambda x, d: rows(x, d) * np.cos(np.arange(x.shape[d]))[:, None],
            "half of the size": lambda x, d: x * (jnp.arange(x.shape[d]).sum() / x.shape[d] + 1),
            "mask of the first": lambda x, d: rows(x, d) * (jnp.arange(x.shape[d]) < 1)[:, None],
            "one for each pair": lambda x, d: jnp.tri(x.shape[d]) @ rows(x, d),
        },
        kinds=NUMBERS,
    ),
    *entries(
        {
            "linspace between data": lambda x, d: jnp.linspace(jnp.min(x), jnp.max(x), 5),
            "arange from data": lambda x, d: jnp.arange(4) * jnp.max(x) + x.shape[another(x, d)],
            "position of the largest": lambda x, d: jnp.argmax(to_front(x, d), axis=0) + x.shape[d],
        },
        smooth=False,
        jumps=True,
        kinds=(INT, "float"),
    ),
    *entries(
        {"fill for flags": lambda x, d: jnp.where(x.astype(bool), x.shape[d], 0)}, kinds=PLAIN, jumps=True, smooth=False
    ),
)

CONTROL = LOOPS + DERIVATIVES + CALLS_OF_PYTHON + SIZES
