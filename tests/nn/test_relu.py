"""The layer of ReLU networks, whose derivative is written by hand, is the layer that it stands for."""

import jax
import jax.numpy as jnp
import pytest

from fragmenta.nn.relu import ReluMLP, layer


def plain(x: jax.Array, kernel: jax.Array, bias: jax.Array, cut: bool) -> jax.Array:
    y = x.astype(jnp.float32) @ kernel.astype(jnp.float32) + bias[..., None, :]
    return jax.nn.relu(y).astype(x.dtype) if cut else y


@pytest.mark.parametrize("copies", [(), (2,)])
@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize(("compute", "tolerance"), [("float32", 1e-6), ("bfloat16", 1e-2)])
def test_outputs_and_gradients(copies: tuple[int, ...], cut: bool, compute: str, tolerance: float) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (*copies, 32, 8), compute)
    kernel = jax.random.normal(keys[1], (*copies, 8, 16), compute)
    bias, target = jax.random.normal(keys[2], (*copies, 16)), jax.random.normal(keys[3], (*copies, 32, 16))

    def loss(function, *arguments):
        return jnp.mean((function(*arguments, cut) - target) ** 2)

    y, z = plain(x, kernel, bias, cut), jax.jit(layer, static_argnums=3)(x, kernel, bias, cut)
    assert y.dtype == z.dtype
    assert jnp.allclose(y.astype(jnp.float32), z.astype(jnp.float32), rtol=tolerance, atol=tolerance)
    expected = jax.grad(lambda *a: loss(plain, *a), argnums=(0, 1, 2))(x, kernel, bias)
    actual = jax.jit(jax.grad(lambda *a: loss(layer, *a), argnums=(0, 1, 2)))(x, kernel, bias)
    for a, b in zip(expected, actual, strict=True):
        assert a.dtype == b.dtype
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        assert jnp.max(jnp.abs(a - b)) <= tolerance * jnp.max(jnp.abs(a))


def test_copies_under_vmap_are_networks_of_their_own() -> None:
    """Several seeds are one program, mapped over the layer and over its derivative."""
    network = ReluMLP((16,), 3, copies=2, compute="bfloat16")
    x = jax.random.normal(jax.random.key(1), (4, 32, 5))
    params = jax.vmap(network.init)(jax.random.split(jax.random.key(2), 4), x)
    gradient = jax.grad(lambda params, x: jnp.sum(jnp.square(jnp.asarray(network.apply(params, x)))))
    together = jax.jit(jax.vmap(gradient))(params, x)
    for i in range(4):
        alone = gradient(jax.tree.map(lambda leaf, i=i: leaf[i], params), x[i])
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            assert jnp.max(jnp.abs(a - b[i])) <= 1e-2 * jnp.max(jnp.abs(a))
