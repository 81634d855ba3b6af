"""ReLU networks, alone or several of the same shape at once."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint


class ReluMLP(nn.Module):
    """A ReLU network, or with `copies` as many independent ones, whose outputs are the first axis of the result.

    Weights start uniform within one over the square root of the inputs. Multiplies in `compute`, sums in float32, and
    returns float32.
    """

    hidden: Sequence[int]
    outputs: int
    copies: int = 0
    layer_norm: bool = False
    compute: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The outputs for a batch of any leading shape."""
        leading, widths = x.shape[:-1], (x.shape[-1], *self.hidden, self.outputs)
        first = (self.copies,) if self.copies else ()
        x = x.reshape(-1, widths[0]).astype(self.compute)
        # Rows for each copy from the first layer on: XLA would compute that of all copies as one product otherwise, and
        # transpose its result on the CPU.
        x = jnp.broadcast_to(x, (*first, *x.shape))
        for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            start = _uniform(inputs**-0.5)
            kernel = self.param(f"kernel_{i}", start, (*first, inputs, outputs)).astype(self.compute)
            bias = self.param(f"bias_{i}", start, (*first, outputs))
            if i == len(self.hidden):
                x = layer(x, kernel, bias, cut=False)
            elif self.layer_norm:
                x = layer(x, kernel, bias, cut=False).astype(self.compute)
                x = nn.relu(nn.LayerNorm(use_scale=False, use_bias=False, dtype=jnp.dtype(self.compute))(x))
            else:
                x = layer(x, kernel, bias, cut=True)
        return x.reshape(*first, *leading, self.outputs)


def layer(x: jax.Array, kernel: jax.Array, bias: jax.Array, cut: bool) -> jax.Array:
    """Rows times a matrix plus a bias, in float32; or, with `cut`, cut at zero in the type of the rows.

    Any type is as exact as that of its rows. On a CPU, bfloat16 takes half the time that its own derivative would.
    """
    return _layer(x, kernel, bias, cut)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer(x: jax.Array, kernel: jax.Array, bias: jax.Array, cut: bool) -> Any:
    y = jnp.matmul(x, kernel, preferred_element_type=jnp.float32) + bias[..., None, :]
    return jnp.maximum(y, 0.0).astype(x.dtype) if cut else y


def _forward(x: jax.Array, kernel: jax.Array, bias: jax.Array, cut: bool) -> tuple[jax.Array, Any]:
    y: Any = _layer(x, kernel, bias, cut)
    return y, (x, kernel, y if cut else None)


def _backward(cut: bool, saved: Any, gradient: jax.Array) -> tuple[jax.Array, ...]:
    x, kernel, y = saved
    if cut:
        gradient = jnp.where(y > 0, gradient, 0)
    of_bias = jnp.sum(gradient.astype(jnp.float32), axis=-2)  # a sum in bfloat16 takes as long as a layer
    gradient = gradient.astype(x.dtype)
    of_x = jnp.einsum("...ro,...io->...ri", gradient, kernel, preferred_element_type=jnp.float32)
    of_kernel = jnp.matmul(_transposed(x), gradient, preferred_element_type=jnp.float32)
    return of_x.astype(x.dtype), of_kernel.astype(kernel.dtype), of_bias


_layer.defvjp(_forward, _backward)


def _transposed(x: jax.Array) -> jax.Array:
    """Columns as rows. On a CPU those of bfloat16 are moved in memory, too: XLA has fast products of them only if what
    it sums over is contiguous, and folds any other transposition into the product."""

    def moved(x: jax.Array) -> jax.Array:
        return with_layout_constraint(jnp.swapaxes(x, -1, -2), Layout(tuple(range(x.ndim))))

    plain = functools.partial(jnp.swapaxes, axis1=-1, axis2=-2)
    return jax.lax.platform_dependent(x, cpu=moved, default=plain) if x.dtype == jnp.bfloat16 else plain(x)


def _uniform(bound: float) -> nn.initializers.Initializer:
    return lambda key, shape, *_: jax.random.uniform(key, shape, minval=-bound, maxval=bound)  # pyright: ignore
