"""Stages as ordinary JAX functions, and inside Fragmenta."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import stage


@stage
def double(x: jax.Array) -> jax.Array:
    return 2 * x


def test_a_stage_is_ordinary_jax() -> None:
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(double(x), 2 * x)
    np.testing.assert_array_equal(jax.grad(lambda x: double(x).sum())(x), jnp.full(3, 2.0))


def transformed(name: str):
    x = jnp.arange(3.0)
    return {
        "scan": lambda: jax.lax.scan(lambda c, _: (double(c), None), x, length=2),
        "vmap": lambda: jax.vmap(double)(x),
        "grad": lambda: jax.grad(lambda x: double(x).sum())(x),
        "cond": lambda: jax.lax.cond(x[0] > 0, double, lambda x: x, x),
        "remat": lambda: jax.grad(lambda x: jax.checkpoint(double)(x).sum())(x),
    }[name]


@pytest.mark.parametrize("name", ["scan", "vmap", "grad", "cond", "remat"])
def test_its_name_survives(name: str) -> None:
    assert "stage:double" in str(jax.make_jaxpr(transformed(name))())


@stage
def scaled(x: jax.Array, doubles: bool, sign: str = "plus") -> jax.Array:
    x = 2 * x if doubles else x
    return x if sign == "plus" else -x


def test_python_arguments_are_part_of_the_program() -> None:
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(scaled(x, True), 2 * x)
    np.testing.assert_array_equal(jax.jit(lambda x: scaled(x, False, sign="minus"))(x), -x)
