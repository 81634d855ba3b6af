"""The mixing network of QMIX."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class Mixer(nn.Module):
    """One value from those of all agents, which never falls as one of them rises.

    Its weights and biases are the outputs of hypernetworks on what all agents observe; weights are made positive.
    Computes in `compute`, returns float32.
    """

    units: int
    hypernetwork: int
    """Hidden units of the hypernetworks."""
    compute: str = "float32"

    @nn.compact
    def __call__(self, values: jax.Array, everything: jax.Array) -> jax.Array:
        """The values of a batch of any leading shape; agents are the last axis of `values`."""
        agents, dtype = values.shape[-1], jnp.dtype(self.compute)

        def dense(inputs: jax.Array, outputs: int, name: str) -> jax.Array:
            return nn.Dense(outputs, dtype=dtype, name=name)(inputs)

        def made(outputs: int, name: str) -> jax.Array:
            return dense(nn.relu(dense(everything, self.hypernetwork, f"{name}_hidden")), outputs, name)

        first = jnp.abs(made(agents * self.units, "first")).reshape(*values.shape, self.units)
        bias = dense(everything, self.units, "first_bias")
        hidden = nn.elu(jnp.einsum("...a,...au->...u", values.astype(dtype), first) + bias)
        mixed = jnp.sum(hidden * jnp.abs(made(self.units, "second")), axis=-1)
        return (mixed + made(1, "second_bias")[..., 0]).astype(jnp.float32)
