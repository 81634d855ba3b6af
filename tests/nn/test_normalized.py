"""The normalised layer, whose derivative is written by hand, is the layers that it stands for."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from fragmenta.nn.normalized import normalized_relu


@pytest.mark.parametrize("leading", [(64,), (4, 8)])
def test_outputs_and_gradients(leading: tuple[int, ...]) -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    x = 3.0 + jax.random.normal(keys[0], (*leading, 16))
    vectors = [jax.random.normal(key, (16,)) for key in keys[1:4]]
    target = jax.random.normal(keys[4], x.shape)

    def plain(x, bias, scale, shift):
        normal = nn.LayerNorm(use_fast_variance=False).apply({"params": {"scale": scale, "bias": shift}}, x + bias)
        return jax.nn.relu(normal)

    def loss(function, *arguments):
        return jnp.mean((function(*arguments) - target) ** 2)

    assert jnp.allclose(plain(x, *vectors), normalized_relu(x, *vectors), atol=1e-6)
    expected = jax.grad(lambda *a: loss(plain, *a), argnums=(0, 1, 2, 3))(x, *vectors)
    actual = jax.grad(lambda *a: loss(normalized_relu, *a), argnums=(0, 1, 2, 3))(x, *vectors)
    for a, b in zip(expected, actual, strict=True):
        assert jnp.allclose(a, b, atol=1e-6)
