"""Stages and marks outside and inside the system."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fragmenta import all_gather, all_mean, all_sum, stage, sync_gradients


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


MARKS = {"mean": all_mean, "sum": all_sum, "gather": all_gather}


@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_a_mark_is_the_identity_with_one_replica(mark) -> None:
    tree = {"a": jnp.arange(3.0), "b": (jnp.ones(()),)}
    jax.tree.map(np.testing.assert_array_equal, jax.jit(mark)(tree), tree)
    np.testing.assert_array_equal(jax.vmap(mark)(jnp.arange(6.0).reshape(2, 3)), jnp.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(jax.grad(lambda x: mark(x * x).sum())(jnp.arange(3.0)), 2 * jnp.arange(3.0))
    assert "mark" in str(jax.make_jaxpr(mark)(jnp.ones(2))), "it must be visible in the traced program"


def test_marks_are_collectives_among_replicas() -> None:
    rows = jnp.arange(6.0).reshape(3, 2)
    replicas = {name: jax.vmap(mark, axis_name="envs")(rows) for name, mark in MARKS.items()}
    np.testing.assert_allclose(replicas["mean"], jnp.broadcast_to(rows.mean(0), (3, 2)))
    np.testing.assert_allclose(replicas["sum"], jnp.broadcast_to(rows.sum(0), (3, 2)))
    np.testing.assert_allclose(replicas["gather"], jnp.broadcast_to(rows.reshape(-1), (3, 6)))


def test_sync_gradients_is_a_link_of_an_optimizer() -> None:
    optimizer = optax.chain(sync_gradients(), optax.sgd(1.0))
    params = {"w": jnp.zeros(2)}

    def update(gradient: jax.Array) -> jax.Array:
        updates, _ = optimizer.update({"w": gradient}, optimizer.init(params), params)
        return updates["w"]

    np.testing.assert_allclose(update(jnp.ones(2)), -jnp.ones(2))
    both = jax.vmap(update, axis_name="envs")(jnp.asarray([[1.0, 0.0], [3.0, 0.0]]))
    np.testing.assert_allclose(both, [[-2.0, 0.0], [-2.0, 0.0]])
