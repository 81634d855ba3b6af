"""Networks that algorithms share, in flax linen."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp


class MLP(nn.Module):
    """A tanh network with orthogonal weights; computes in `compute`, keeps parameters and output in float32."""

    hidden: Sequence[int]
    outputs: int
    output_scale: float
    compute: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The outputs for a batch of any leading shape."""
        for width in self.hidden:
            x = nn.tanh(self._dense(width, 2**0.5)(x))
        return self._dense(self.outputs, self.output_scale)(x).astype(jnp.float32)

    def _dense(self, width: int, scale: float) -> nn.Dense:
        return nn.Dense(width, kernel_init=nn.initializers.orthogonal(scale), dtype=jnp.dtype(self.compute))
