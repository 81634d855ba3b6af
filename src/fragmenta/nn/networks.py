"""Networks shared by algorithms, in flax linen."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

Layers = tuple[tuple[jax.Array, jax.Array], ...]
"""Per layer: weights and bias."""


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
        outputs = _layer_by_layer(layers, x.reshape(-1, widths[0]), self.compute)
        return outputs.reshape(*x.shape[:-1], widths[-1])


def _layer_by_layer(layers: Layers, x: jax.Array, compute: str) -> jax.Array:
    dtype = jnp.dtype(compute)
    x = x.astype(dtype)
    for i, (kernel, bias) in enumerate(layers):
        x = x @ kernel.astype(dtype) + bias.astype(dtype)
        if i < len(layers) - 1:
            x = jnp.tanh(x)
    return x.astype(jnp.float32)
