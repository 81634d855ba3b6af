"""ReLU networks, alone or several of the same shape at once."""

import itertools
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp


class ReluMLP(nn.Module):
    """A ReLU network, or with `copies` as many independent ones, whose outputs are the first axis of the result.

    Weights start uniform within one over the square root of the inputs. Computes in `compute`, returns float32.
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
            bias = self.param(f"bias_{i}", start, (*first, outputs)).astype(self.compute)
            x = x @ kernel + bias[..., None, :]
            if i < len(self.hidden):
                if self.layer_norm:
                    x = nn.LayerNorm(use_scale=False, use_bias=False, dtype=jnp.dtype(self.compute))(x)
                x = nn.relu(x)
        return x.reshape(*first, *leading, self.outputs).astype(jnp.float32)


def _uniform(bound: float) -> nn.initializers.Initializer:
    return lambda key, shape, *_: jax.random.uniform(key, shape, minval=-bound, maxval=bound)  # pyright: ignore
