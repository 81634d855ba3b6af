"""Networks over discrete actions: dueling streams, distributions of the return, and noise to explore with."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from fragmenta.nn.normalized import NormalizedDense


class QNetwork(nn.Module):
    """A ReLU network with `atoms` numbers for every action; computes in `compute`, returns float32.

    With `dueling`, a value and advantages are computed apart and added (Wang et al., 2016). With `noisy`, weights have
    learned noise (Fortunato et al., 2018), drawn from the key in the last argument; without one there is none. With
    `layer_norm`, hidden layers are normalised.
    """

    hidden: Sequence[int]
    actions: int
    atoms: int = 1
    dueling: bool = False
    noisy: bool = False
    layer_norm: bool = False
    compute: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Outputs of shape (..., actions, atoms)."""
        layers = 0

        def dense(x: jax.Array, outputs: int, scale: float = 2**0.5) -> jax.Array:
            nonlocal layers
            layers += 1
            if not self.noisy:
                init = nn.initializers.orthogonal(scale)
                return nn.Dense(outputs, dtype=jnp.dtype(self.compute), kernel_init=init, name=f"dense_{layers}")(x)
            layer_key = None if key is None else jax.random.fold_in(key, layers)
            return NoisyDense(outputs, self.compute, name=f"noisy_{layers}")(x, layer_key)

        def active(x: jax.Array, width: int) -> jax.Array:
            nonlocal layers
            if not self.layer_norm:
                return nn.relu(dense(x, width))
            layers += 1
            init = nn.initializers.orthogonal(2**0.5)
            return NormalizedDense(width, init, self.compute, name=f"normalized_{layers}")(x)

        x = x.astype(self.compute)
        shared, apart = (self.hidden[:-1], self.hidden[-1:]) if self.dueling else (self.hidden, ())
        for width in shared:
            x = active(x, width)
        if not self.dueling:
            return self._by_action(dense(x, self.actions * self.atoms, 1.0))

        def stream(x: jax.Array, outputs: int) -> jax.Array:
            for width in apart:
                x = active(x, width)
            return dense(x, outputs, 1.0)

        value, advantage = stream(x, self.atoms), self._by_action(stream(x, self.actions * self.atoms))
        return value.astype(jnp.float32)[..., None, :] + advantage - jnp.mean(advantage, axis=-2, keepdims=True)

    def _by_action(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.actions, self.atoms).astype(jnp.float32)


class NoisyDense(nn.Module):
    """A dense layer with factorised Gaussian noise on its weights."""

    outputs: int
    compute: str = "float32"

    @nn.compact
    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """The outputs; without a key, those of the mean weights."""
        inputs = x.shape[-1]
        bound = inputs**-0.5

        def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        deviation = nn.initializers.constant(0.5 * bound)
        kernel = self.param("kernel", uniform, (inputs, self.outputs))
        bias = self.param("bias", uniform, (self.outputs,))
        kernel_scale = self.param("kernel_scale", deviation, (inputs, self.outputs))
        bias_scale = self.param("bias_scale", deviation, (self.outputs,))
        if key is not None:
            noise_in, noise_out = (
                _factor(jax.random.fold_in(key, 0), inputs),
                _factor(jax.random.fold_in(key, 1), self.outputs),
            )
            kernel = kernel + kernel_scale * jnp.outer(noise_in, noise_out)
            bias = bias + bias_scale * noise_out
        return x @ kernel.astype(self.compute) + bias.astype(self.compute)


def _factor(key: jax.Array, size: int) -> jax.Array:
    noise = jax.random.normal(key, (size,))
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
