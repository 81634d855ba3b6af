"""Networks shared by algorithms, in flax linen."""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.nn.mlp_kernel import Layers, fits, mlp

KERNEL_ROWS = 1_024
"""Rows from which a GPU computes the whole network in one kernel; below, launching it costs more than it saves."""


class MLP(nn.Module):
    """A tanh network with orthogonal weights; computes in `compute`, with parameters and outputs in float32."""

    hidden: Sequence[int]
    outputs: int
    output_scale: float
    compute: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The outputs for a batch of any leading shape."""
        widths = (x.shape[-1], *self.hidden, self.outputs)
        scales = [2**0.5] * len(self.hidden) + [self.output_scale]
        layers = tuple(
            (
                self.param(f"kernel_{i}", nn.initializers.orthogonal(scale), (widths[i], widths[i + 1])),
                self.param(f"bias_{i}", nn.initializers.zeros, (widths[i + 1],)),
            )
            for i, scale in enumerate(scales)
        )
        return _network(layers, x, compute=self.compute)


def _network(layers: Layers, x: jax.Array, compute: str) -> jax.Array:
    widths = (x.shape[-1], *(bias.shape[0] for _, bias in layers))
    plain = functools.partial(_layer_by_layer, compute=compute)
    rows = x.reshape(-1, widths[0])
    count: Any = rows.shape[0]
    # In an exported policy the number of rows is symbolic, not an integer.
    # The kernel's products are of the device's usual precision: not those of `--compute float32-exact`.
    usual = jax.config.jax_default_matmul_precision is None  # pyright: ignore[reportAttributeAccessIssue]
    if usual and isinstance(count, int) and count >= KERNEL_ROWS and fits(count, widths):
        fused = functools.partial(mlp, compute=compute, interpret=False)
        outputs = jax.lax.platform_dependent(layers, rows, cuda=fused, default=plain)
    else:
        outputs = plain(layers, rows)
    return outputs.reshape(*x.shape[:-1], widths[-1])


def _layer_by_layer(layers: Layers, x: jax.Array, compute: str) -> jax.Array:
    dtype = jnp.dtype(compute)
    x = x.astype(dtype)
    for i, (kernel, bias) in enumerate(layers):
        x = x @ kernel.astype(dtype) + bias.astype(dtype)
        if i < len(layers) - 1:
            x = jnp.tanh(x)
    return x.astype(jnp.float32)
