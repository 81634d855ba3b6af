"""Operations that move elements without changing them."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from partition.table import KEY, PLAIN, along_axes, another, entries, rows, to_front

PADDINGS = ("constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "mean")


def _padded(mode):
    def pad(x, axis):
        room = 1 if mode not in ("reflect",) else min(1, x.shape[axis] - 1)
        widths = [(room, room) if i == axis else (0, 0) for i in range(x.ndim)]
        return jnp.pad(x, widths, mode=mode)

    return pad


def _halves(x, axis):
    return jnp.array_split(x, 2, axis=axis) if x.shape[axis] > 1 else [x]


def _interior(x, axis):
    widths = [(1, 0, 1) if i == axis else (0, 0, 0) for i in range(x.ndim)]
    return lax.pad(x, jnp.zeros((), x.dtype), widths)


def _trimmed(x, axis):
    widths = [(1, -1, 0) if i == axis else (0, 0, 0) for i in range(x.ndim)]
    return lax.pad(x, jnp.zeros((), x.dtype), widths)


def _pairs(x, d):
    """The environments reshaped into two halves."""
    n = x.shape[d]
    return x.reshape(*x.shape[:d], 2, n // 2, *x.shape[d + 1 :]) if n % 2 == 0 else x


def _back(flat, x):
    return (flat + 1 if flat.dtype != bool else ~flat).reshape(x.shape)


MOVES = {
    "identity": lambda x, d: x + 0 if x.dtype != bool else x | False,
    "flatten": lambda x, d: x.reshape(-1),
    "flatten and unflatten": lambda x, d: _back(x.reshape(-1), x),
    "flatten the environments with those after": lambda x, d: x.reshape(*x.shape[:d], -1),
    "flatten the environments with those before": lambda x, d: x.reshape(-1, *x.shape[d + 1 :]),
    "environments first, flattened": lambda x, d: to_front(x, d).reshape(-1),
    "rows": rows,
    "rows and back": lambda x, d: jnp.moveaxis(rows(x, d).reshape(to_front(x, d).shape), 0, d),
    "in two rows": _pairs,
    "in two columns": lambda x, d: x.reshape(*x.shape[:d], -1, 2, *x.shape[d + 1 :]) if x.shape[d] % 2 == 0 else x,
    "reshape in column order": lambda x, d: x.reshape(-1, order="F"),
    "swap rows and columns of a block": lambda x, d: _pairs(x, d).swapaxes(d, -1),
    "transpose": lambda x, d: x.T,
    "moveaxis to the front": to_front,
    "moveaxis to the end": lambda x, d: jnp.moveaxis(x, d, -1),
    "swapaxes": lambda x, d: jnp.swapaxes(x, d, another(x, d)),
    "expand_dims": lambda x, d: jnp.expand_dims(x, (0, d + 2)) if x.ndim > d + 1 else x[None],
    "expand and squeeze": lambda x, d: jnp.squeeze(jnp.expand_dims(x, d), d),
    "squeeze all of size one": lambda x, d: jnp.squeeze(x)[None],
    "broadcast_to in front": lambda x, d: jnp.broadcast_to(x, (2, *x.shape)),
    "broadcast over a new dimension": lambda x, d: jnp.broadcast_to(
        jnp.expand_dims(x, d), (*x.shape[:d], 3, *x.shape[d:])
    ),
    "atleast_2d": lambda x, d: jnp.atleast_2d(x),
    "tile all": lambda x, d: jnp.tile(x, (2,) * x.ndim),
    "hstack": lambda x, d: jnp.hstack([x, x[::-1]]),
    "vstack": lambda x, d: jnp.vstack([x, x]),
    "diagonal": lambda x, d: jnp.diagonal(jnp.atleast_2d(x)),
    "diagonal of pairs": lambda x, d: jnp.diagonal(to_front(x, d)[:, None] == to_front(x, d)[None]),
    "diag": lambda x, d: jnp.diag(x.reshape(-1)[: x.shape[d]]),
    "meshgrid": lambda x, d: jnp.meshgrid(rows(x, d)[:, 0], jnp.arange(3)),
    "block": lambda x, d: jnp.block([[x, x], [x, x]]),
    "with ones beside": lambda x, d: jnp.concatenate([x, jnp.ones_like(x)], axis=another(x, d)),
    "with a shared row": lambda x, d: jnp.concatenate([to_front(x, d), to_front(x, d)[:1] * 0], axis=0),
}

KEPT = {
    "roll": lambda x, axis: jnp.roll(x, 1, axis=axis),
    "roll back by two": lambda x, axis: jnp.roll(x, -2, axis=axis),
    "flip": lambda x, axis: jnp.flip(x, axis=axis),
    "repeat": lambda x, axis: jnp.repeat(x, 2, axis=axis),
    "tile": lambda x, axis: jnp.tile(x, [2 if i == axis else 1 for i in range(x.ndim)]),
    "concatenate": lambda x, axis: jnp.concatenate([x, x], axis=axis),
    "stack": lambda x, axis: jnp.stack([x, x ^ True if x.dtype == bool else -x], axis=axis),
    "split in each": lambda x, axis: [piece + 0 for piece in jnp.split(x, x.shape[axis], axis=axis)][-1],
    "array_split": _halves,
    "halves exchanged": lambda x, axis: jnp.concatenate(_halves(x, axis)[::-1], axis=axis),
    "unstack": lambda x, axis: (
        jnp.unstack(x, axis=axis)[0] | jnp.unstack(x, axis=axis)[-1]
        if x.dtype == bool
        else jnp.unstack(x, axis=axis)[0] - jnp.unstack(x, axis=axis)[-1]
    ),
    "delete the first": lambda x, axis: jnp.delete(x, 0, axis=axis) if x.shape[axis] > 1 else x,
    "append": lambda x, axis: jnp.append(x, x, axis=axis),
    "shift in zeros": _trimmed,
    "pad inside": _interior,
}

SHAPING = (
    *entries(MOVES, kinds=PLAIN, exact=True),
    *along_axes(KEPT, kinds=PLAIN, exact=True),
    *along_axes({f"pad {mode}": _padded(mode) for mode in PADDINGS[:5]}, exact=True),
    *along_axes({f"pad {mode}": _padded(mode) for mode in PADDINGS[5:]}, smooth=False),
    *entries(
        {
            "tril": lambda x, d: jnp.tril(x),
            "triu": lambda x, d: jnp.triu(x, 1) + x[..., :1],
            "rot90": lambda x, d: jnp.rot90(x, 1, (d, another(x, d))),
            "fliplr": lambda x, d: jnp.fliplr(x),
            "transpose in a cycle": lambda x, d: jnp.transpose(x, np.roll(np.arange(x.ndim), 1)),
        },
        kinds=PLAIN,
        exact=True,
        ranks=(2, 4),
    ),
    *entries({"trace": lambda x, d: jnp.trace(x, axis1=d, axis2=another(x, d))}, ranks=(2, 4)),
    *entries({"vander": lambda x, d: jnp.vander(rows(x, d)[:, 0], 3)}),
    *entries(
        {
            "keys moved": lambda x, d: jnp.moveaxis(x, d, 0).reshape(-1),
            "keys reversed": lambda x, d: jnp.flip(x, d),
            "keys indexed": lambda x, d: jnp.take(x, jnp.arange(x.shape[d])[::-1], axis=d),
            "keys side by side": lambda x, d: jnp.concatenate([x, x], axis=d),
        },
        kinds=(KEY,),
        exact=True,
        smooth=False,
    ),
)
