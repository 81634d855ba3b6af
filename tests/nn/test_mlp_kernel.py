"""The GPU kernel, interpreted on the CPU, computes the same as the plain layers."""

import jax
import jax.numpy as jnp
import pytest

from fragmenta.nn.mlp_kernel import BLOCK, fits, mlp
from fragmenta.nn.networks import _layer_by_layer


@pytest.mark.full
@pytest.mark.parametrize(("compute", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("widths", [(4, 64, 64, 2), pytest.param((3, 32, 1), marks=pytest.mark.full)])
def test_outputs_and_gradients(widths: tuple[int, ...], compute: str, tolerance: float) -> None:
    rows = 6 * BLOCK
    keys = jax.random.split(jax.random.key(0), len(widths) + 1)
    layers = tuple(
        (jax.random.normal(key, (a, b)) / a**0.5, 0.1 * jax.random.normal(key, (b,)))
        for key, a, b in zip(keys, widths, widths[1:], strict=False)
    )
    x, target = jax.random.normal(keys[-1], (rows, widths[0])), jax.random.normal(keys[-2], (rows, widths[-1]))
    assert fits(rows, widths)

    def loss(function, layers, x):
        return jnp.mean((function(layers, x) - target) ** 2)

    def kernel(layers, x):
        return mlp(layers, x, compute, True)

    def plain(layers, x):
        return _layer_by_layer(layers, x, compute="float32")

    for arguments in ((0,), (0, 1)):  # the gradient of x is computed only on request
        expected = jax.grad(lambda *a: loss(plain, *a), argnums=arguments)(layers, x)
        actual = jax.grad(lambda *a: loss(kernel, *a), argnums=arguments)(layers, x)
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
            assert float(jnp.linalg.norm(a - b) / jnp.linalg.norm(a)) < tolerance
    error = jnp.linalg.norm(kernel(layers, x) - plain(layers, x)) / jnp.linalg.norm(plain(layers, x))
    assert float(error) < tolerance


def test_layers_that_do_not_fit_the_kernel_are_left_to_xla() -> None:
    assert not fits(BLOCK + 1, (4, 64, 2))
    assert not fits(BLOCK, (4, 50, 2))
    assert not fits(BLOCK, (400, 64, 2))
