"""Networks with a hand-made kernel for one platform: generated kernels compute the same, or leave them alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta.nn import MLP
from fragmenta.nn.networks import KERNEL_ROWS
from fragmenta.worker.backends.kernel import with_kernels
from fragmenta.worker.kernels.rewrite import Replaceable
from fragmenta.worker.kernels.tuning import Tuning
from fragmenta.worker.kernels.values import NoRule
from kernel_launchers import launcher

NETWORK = MLP((16,), 2, 1.0)
X = jax.random.normal(jax.random.key(1), (KERNEL_ROWS, 4))
LEAVES, STRUCTURE = jax.tree.flatten(NETWORK.init(jax.random.key(0), X))
PALLAS = "mlp_backward"


def outputs(x: jax.Array, *leaves: jax.Array) -> tuple[jax.Array, ...]:
    return (2.0 * NETWORK.apply(jax.tree.unflatten(STRUCTURE, leaves), x),)


def gradient(x: jax.Array, *leaves: jax.Array) -> tuple[jax.Array, ...]:
    return jax.grad(lambda leaves: jnp.mean(outputs(x, *leaves)[0] ** 2))(leaves)


def looped(x: jax.Array, *leaves: jax.Array) -> tuple[jax.Array, ...]:
    """A loop over rows with the network inside, as a rollout is one."""

    def body(carry: Any, _: Any) -> Any:
        return carry + 0.1 * jnp.sum(outputs(carry, *leaves)[0], axis=-1, keepdims=True), carry[:, 0]

    return tuple(jax.tree.leaves(jax.lax.scan(body, x, length=3)))


def gradient_of_loop(x: jax.Array, *leaves: jax.Array) -> tuple[jax.Array, ...]:
    """The forward half is one loop and the gradient another: intermediate values go from one to the other."""
    return jax.grad(lambda leaves: jnp.mean(looped(x, *leaves)[0] ** 2))(leaves)


def close(actual: Any, expected: Any) -> None:
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5)


@pytest.mark.parametrize("function", [outputs, gradient, looped])
def test_a_network_becomes_a_kernel_by_its_default(function: Any) -> None:
    rewritten = with_kernels(function, [X, *LEAVES], launcher("interpreted"))
    assert rewritten.report.kernels, rewritten.report
    close(jax.jit(rewritten.function)(X, *LEAVES), function(X, *LEAVES))


def test_a_gradient_in_another_loop_is_left_alone() -> None:
    rewritten = with_kernels(gradient_of_loop, [X, *LEAVES], launcher("interpreted"))
    assert "a choice by platform, whose gradient is elsewhere" in rewritten.report.reasons
    close(jax.jit(rewritten.function)(X, *LEAVES), gradient_of_loop(X, *LEAVES))


@pytest.mark.parametrize("faster", ["XLA", "kernel"])
def test_kernels_are_measured_beside_the_hand_made_kernel(faster: str) -> None:
    timed = []

    def seconds(function: Any, arrays: Any) -> float:
        timed.append(str(jax.make_jaxpr(function)(*arrays)))
        return float((len(timed) == 1) == (faster == "kernel"))

    tuning = Tuning(lambda _: {"usual": launcher("interpreted")}, faster, None, seconds)
    rewritten = with_kernels(gradient, [X, *LEAVES], tuning)
    assert PALLAS in timed[0]
    assert PALLAS not in timed[1]
    program = str(jax.make_jaxpr(rewritten.function)(X, *LEAVES))
    assert (PALLAS in program) == (faster == "XLA")
    close(jax.jit(rewritten.function)(X, *LEAVES), gradient(X, *LEAVES))


def test_parts_compute_the_same_as_their_kernels() -> None:
    parts: list[Replaceable] = []

    class Choosing(Tuning):
        def choose(self, part: Replaceable) -> Any:
            parts.append(part)
            raise NoRule("seen")

    with_kernels(gradient, [X, *LEAVES], Choosing(lambda _: {}, "", None))
    (part,) = parts
    arrays = [jnp.full(v.aval.shape, 0.1, v.aval.dtype) for v in part.inputs]
    close(part.with_kernels(launcher("interpreted"))(*arrays), part.plain(*arrays))


def test_exact_products_do_without_the_hand_made_kernel() -> None:
    assert PALLAS in str(jax.make_jaxpr(gradient)(X, *LEAVES))
    with jax.default_matmul_precision("highest"):
        assert PALLAS not in str(jax.make_jaxpr(lambda *a: gradient(*a))(X, *LEAVES))
