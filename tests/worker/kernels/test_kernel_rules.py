"""Every rule computes what JAX does: interpreted, and as generated source on the CPU."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta.worker.backends.kernel import with_kernels
from kernel_launchers import WAYS, launcher

ROWS = 37
FLOATS = np.array([0.0, -0.0, 1.0, -1.5, 0.3, 2.5, -7.25, 1e-30, 3e38, np.inf, -np.inf, np.nan], np.float32)
INTEGERS = np.array([0, 1, -1, 7, -9, 31, 32, 33, 2**31 - 1, -(2**31)], np.int64)


def loop(function: Any) -> Any:
    """A loop of two rounds that applies a function to rows, and to weights that do not change."""

    def run(rows: tuple[jax.Array, ...], weights: tuple[jax.Array, ...]) -> Any:
        def body(carry: jax.Array, slices: Any) -> Any:
            number, *parts = slices
            return carry + 1, function(*parts, *weights, number)

        twice = [jnp.stack([row, row[::-1]]) for row in rows]
        return jax.lax.scan(body, jnp.zeros(ROWS), (jnp.arange(2), *twice))

    return run


def check(
    function: Any, rows: list[np.ndarray], way: str, tolerance: float = 2e-6, weights: tuple[np.ndarray, ...] = ()
) -> None:
    """A function of rows computes the same in a kernel, and all of it is in one."""
    program, count = loop(function), len(rows)
    flat = lambda *a: tuple(jax.tree.leaves(program(a[:count], a[count:])))  # noqa: E731
    rewritten = with_kernels(flat, [*rows, *weights], launcher(way))
    assert [kernel.name for kernel in rewritten.report.kernels] == ["loop0"], rewritten.report.reasons
    expected, actual = jax.jit(flat)(*rows, *weights), jax.jit(rewritten.function)(*rows, *weights)
    for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), tolerance, tolerance, err_msg=f"result {i}")


def drawn(values: np.ndarray, dtype: Any, seed: int) -> np.ndarray:
    chosen = np.random.default_rng(seed).choice(values, ROWS)
    chosen[: len(values)] = values
    return chosen.astype(np.uint64).astype(dtype) if dtype == np.uint32 else chosen.astype(dtype)


@pytest.mark.parametrize("way", WAYS)
def test_arithmetic_on_floats(way: str) -> None:
    def function(x, y, _):
        lax = jax.lax
        pairs = [
            f(x, y)
            for f in (
                lax.add,
                lax.sub,
                lax.mul,
                lax.div,
                lax.max,
                lax.min,
                lax.eq,
                lax.ne,
                lax.lt,
                lax.le,
                lax.gt,
                lax.ge,
            )
        ]
        single = [f(x) for f in (lax.neg, lax.abs, lax.sign, lax.floor, lax.ceil, lax.is_finite, lax.sqrt, lax.tanh)]
        cast = [x.astype(jnp.int32), x.astype(jnp.uint32), x.astype(bool), lax.bitcast_convert_type(x, jnp.int32)]
        return pairs, single, cast, jnp.where(x > y, x, 2.0), jnp.clip(y, -1.0, 1.5), x**3, jnp.square(y), x**-2

    check(function, [drawn(FLOATS, np.float32, 0), drawn(FLOATS[::-1], np.float32, 1)], way)


@pytest.mark.parametrize("way", WAYS)
def test_functions_of_floats(way: str) -> None:
    def function(x, y, _):
        lax = jax.lax
        any_number = (
            lax.exp,
            lax.exp2,
            lax.expm1,
            lax.sin,
            lax.cos,
            lax.tan,
            lax.tanh,
            lax.logistic,
            lax.cbrt,
            lax.erf,
            lax.atan,
            lax.sinh,
            lax.cosh,
            lax.asinh,
        )
        fraction = jnp.abs(jnp.sin(x)) * 0.99
        inside = (lax.log, lax.log1p, lax.rsqrt, lax.asin, lax.acos, lax.atanh, lax.erf_inv)
        return (
            [f(x) for f in any_number],
            [f(fraction + 0.001) for f in inside],
            lax.acosh(1 + jnp.abs(x)),
            lax.pow(jnp.abs(x), y),
            lax.atan2(x, y),
            lax.rem(x, y),
        )

    rng = np.random.default_rng(0)
    check(function, [rng.normal(0, 2, ROWS).astype(np.float32), rng.normal(0, 1, ROWS).astype(np.float32)], way, 2e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_integers(way: str, dtype: Any) -> None:
    def function(x, y, _):
        lax = jax.lax
        pairs = [
            f(x, y)
            for f in (
                lax.add,
                lax.sub,
                lax.mul,
                lax.div,
                lax.rem,
                lax.max,
                lax.min,
                lax.bitwise_and,
                lax.bitwise_or,
                lax.bitwise_xor,
                lax.eq,
                lax.lt,
                lax.ge,
                lax.shift_left,
                lax.shift_right_logical,
                lax.shift_right_arithmetic,
            )
        ]
        single = [f(x) for f in (lax.bitwise_not, lax.neg, lax.sign, lax.population_count, jnp.abs)]
        other = jnp.uint32 if dtype == np.int32 else jnp.int32
        return pairs, single, x.astype(jnp.float32), x.astype(other), x.astype(bool), jnp.logical_not(x > y) ^ (y > 3)

    check(function, [drawn(INTEGERS, dtype, 2), drawn(INTEGERS[::-1], dtype, 3)], way, 0)


@pytest.mark.parametrize("way", WAYS)
def test_what_only_arranges_numbers(way: str) -> None:
    def function(x, y, number):
        a = jnp.stack([x[:, 0], y, x[:, 2] * 2.0])
        b = jnp.concatenate([a.T, x[:, ::-1]], axis=1)
        c = b.reshape(ROWS, 2, 4).transpose(1, 0, 2)
        best = jnp.argmax(b, axis=1), jnp.argmin(b, axis=-1), jnp.argmax(c, axis=2)
        one_hot = jax.nn.one_hot(best[0], 8)
        sums = b.sum(1), b.max(1), b.min(1), c.sum((0, 2)), (b > 0).any(1), (b > 0).all(1), b.prod(1)
        table = jnp.arange(12.0).reshape(6, 2)
        return (
            a,
            b,
            c[1],
            best,
            one_hot,
            sums,
            x[:, 1:4:2],
            jnp.broadcast_to(y[:, None] + number, (ROWS, 3)),
            table[1] + y[:, None],
        )

    rng = np.random.default_rng(0)
    check(function, [rng.normal(size=(ROWS, 5)).astype(np.float32), rng.normal(size=ROWS).astype(np.float32)], way)


@pytest.mark.parametrize("way", WAYS)
def test_random_bits_are_those_of_jax(way: str) -> None:
    def function(words, number):
        keys = jax.vmap(jax.random.fold_in, (0, None))(jax.random.wrap_key_data(words), number)
        first, second = jax.vmap(jax.random.split, out_axes=1)(keys)
        bits = jax.vmap(lambda key: jax.random.bits(key, (3,)))(first)
        return bits, jax.vmap(jax.random.uniform)(second), jax.vmap(jax.random.normal)(keys)

    check(function, [np.arange(2 * ROWS, dtype=np.uint32).reshape(ROWS, 2)], way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("widths", [(3, 5), (4, 64, 64, 2), (20, 24, 17), (33, 40, 1)])
def test_networks(way: str, widths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=pair).astype(np.float32) / 4 for pair in itertools.pairwise(widths)]
    bias = [rng.normal(size=width).astype(np.float32) for width in widths[1:]]

    def function(x, *rest):
        hidden, normed = x, x
        for i, matrix in enumerate(rest[: len(weights)]):
            hidden = jnp.tanh(hidden @ matrix + rest[len(weights) + i])
        if widths[-2] >= 16:  # a norm over a wide dimension
            normed = jnp.tanh(x @ rest[0])
            normed = (normed - normed.mean(1, keepdims=True)) / jnp.sqrt(normed.var(1, keepdims=True) + 1e-5)
        return hidden, jax.nn.silu(hidden), jax.nn.elu(hidden), normed, jax.nn.log_softmax(hidden)

    check(function, [rng.normal(size=(ROWS, widths[0])).astype(np.float32)], way, 2e-5, (*weights, *bias))


def test_what_has_no_rule_stays_with_xla_and_is_named() -> None:
    program = loop(lambda x, _: jnp.sort(x))
    x = np.arange(ROWS, dtype=np.float32)
    rewritten = with_kernels(lambda a: tuple(jax.tree.leaves(program((a,), ()))), [x], launcher("interpreted"))
    assert not rewritten.report.kernels
    assert rewritten.report.reasons == ["loop x2: sort: no rule"]
    np.testing.assert_array_equal(rewritten.function(x)[1], np.stack([x, x]))
