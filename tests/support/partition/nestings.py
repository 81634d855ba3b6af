"""Ways to nest a function: in loops, branches, derivatives and vmap.

A nesting takes `f(x, *others) -> leaves` and `again(x, leaves)`, which computes another x of the same shape.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Function = Callable[..., list[Any]]
Again = Callable[[Any, list[Any]], Any]


@dataclasses.dataclass(frozen=True)
class Nesting:
    wrap: Callable[[Function, Again], Function]
    lifted: bool = False
    """Its x has an additional leading dimension: a sequence."""
    derivative: str = ""
    """`forwards` or `backwards` if it takes a derivative."""
    smooth: bool = True
    """It is differentiable."""


def blank(tree: Any) -> Any:
    """Zeros, the same for all environments."""

    def zeros(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.zeros((*leaf.shape, 2), jnp.uint32))
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.map(zeros, tree)


def count(x: Any) -> Any:
    """The number of positive elements over all environments."""
    data = jax.random.key_data(x) % 2 if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return jnp.count_nonzero(data > 0.0731 if jnp.issubdtype(data.dtype, jnp.floating) else data > 0)


def fractions(leaves: list[Any]) -> list[Any]:
    """The leaves of floating type."""
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


def _loss(f: Function, reduce: Callable[[Any], Any]) -> Function:
    return lambda x, *others: sum(reduce(jnp.sin(leaf.astype(jnp.float32))) for leaf in fractions(f(x, *others)))


def _step(f: Function, again: Again, others: Any) -> Any:
    """The body of a loop: carries the next x and the result, which is whole at first and then split by environment."""

    def step(carry: Any, _: Any = None) -> Any:
        x, _ = carry
        leaves = f(x, *others)
        return (again(x, leaves), leaves), [jnp.max(leaf) for leaf in fractions(leaves)]

    return step


def _start(f: Function, x: Any, others: Any) -> Any:
    return x, blank(jax.eval_shape(f, x, *others))


def _scan(length: int, reverse: bool = False) -> Any:
    def wrap(f: Function, again: Again) -> Function:
        def nested(x: Any, *others: Any) -> Any:
            carry, stacked = lax.scan(_step(f, again, others), _start(f, x, others), length=length, reverse=reverse)
            return jax.tree.leaves((carry, stacked if length else []))

        return nested

    return wrap


def _scan_of_constants(f: Function, again: Again) -> Function:
    def nested(x: Any, *others: Any) -> Any:
        def body(number: Any, time: Any) -> Any:
            return number + time, f(x, *others)

        return jax.tree.leaves(lax.scan(body, jnp.zeros((), jnp.int32), jnp.arange(2)))

    return nested


def _scan_of_sequence(reverse: bool) -> Any:
    def wrap(f: Function, again: Again) -> Function:
        def nested(x: Any, *others: Any) -> Any:
            def body(carry: Any, row: Any) -> Any:
                leaves = f(row, *others)
                return (carry[0] + 1, leaves), leaves

            start = jnp.zeros((), jnp.int32), blank(jax.eval_shape(f, x[0], *others))
            return jax.tree.leaves(lax.scan(body, start, x, reverse=reverse))

        return nested

    return wrap


def _while(goes_on: Callable[[Any, Any], Any]) -> Any:
    def wrap(f: Function, again: Again) -> Function:
        def nested(x: Any, *others: Any) -> Any:
            step = _step(f, again, others)
            start = jnp.zeros((), jnp.int32), _start(f, x, others)
            ended = lax.while_loop(lambda c: goes_on(c[0], c[1][0]), lambda c: (c[0] + 1, step(c[1])[0]), start)
            return jax.tree.leaves(ended)

        return nested

    return wrap


def _fori(rounds: Callable[[Any], Any]) -> Any:
    def wrap(f: Function, again: Again) -> Function:
        def nested(x: Any, *others: Any) -> Any:
            step = _step(f, again, others)
            return jax.tree.leaves(lax.fori_loop(0, rounds(x), lambda i, c: step(c)[0], _start(f, x, others)))

        return nested

    return wrap


def _cond(decision: Callable[[Any], Any]) -> Any:
    def wrap(f: Function, again: Again) -> Function:
        def nested(x: Any, *others: Any) -> Any:
            return lax.cond(decision(x), f, lambda a, *more: f(again(a, f(a, *more)), *more), x, *others)

        return nested

    return wrap


def _switch(f: Function, again: Again) -> Function:
    def nested(x: Any, *others: Any) -> Any:
        nothing = jax.eval_shape(f, x, *others)
        branches = [f, lambda a, *more: f(again(a, f(a, *more)), *more), lambda a, *more: blank(nothing)]
        picked = lax.switch(count(x) % 3, branches, x, *others)
        return [*picked, *lax.switch(jnp.int32(1.5 * jnp.cos(0.0)), branches, x, *others)]

    return nested


def _gradient(reduce: Callable[[Any], Any]) -> Any:
    def wrap(f: Function, again: Again) -> Function:
        return lambda x, *others: list(jax.value_and_grad(_loss(f, reduce))(x, *others))

    return wrap


def _gradient_of_weights(f: Function, again: Again) -> Function:
    def nested(x: Any, *others: Any) -> Any:
        def loss(weights: Any) -> Any:
            return _loss(f, jnp.mean)(x * weights["scale"] + weights["shift"], *others)

        return jax.tree.leaves(jax.grad(loss)({"scale": jnp.ones(x.shape[-1]) * 0.9, "shift": jnp.zeros(())}))

    return nested


def _jvp(f: Function, again: Again) -> Function:
    def nested(x: Any, *others: Any) -> Any:
        values, tangents = jax.jvp(lambda a: fractions(f(a, *others)), (x,), (jnp.cos(x),))
        return values + tangents

    return nested


def _linearized(f: Function, again: Again) -> Function:
    def nested(x: Any, *others: Any) -> Any:
        values, linear = jax.linearize(lambda a: fractions(f(a, *others)), x)
        return values + linear(jnp.ones_like(x))

    return nested


def _vjp(f: Function, again: Again) -> Function:
    def nested(x: Any, *others: Any) -> Any:
        values, pull = jax.vjp(lambda a: fractions(f(a, *others)), x)
        return [*values, *pull([jnp.ones_like(value) for value in values])]

    return nested


def _with_its_own_vjp(f: Function, again: Again) -> Function:
    def nested(x: Any, *others: Any) -> Any:
        @jax.custom_vjp
        def function(a: Any, *more: Any) -> Any:
            return fractions(f(a, *more))

        def backwards(residuals: Any, cotangents: Any) -> Any:
            (pulled,) = jax.vjp(lambda a: fractions(f(a, *residuals[1:])), residuals[0])[1](cotangents)
            return jnp.clip(pulled, -0.2, 0.2), *[None] * len(others)

        function.defvjp(lambda a, *more: (function(a, *more), (a, *more)), backwards)
        return list(jax.value_and_grad(_loss(function, jnp.mean))(x, *others))

    return nested


def _vmap(axis: int) -> Any:
    def wrap(f: Function, again: Again) -> Function:
        def nested(x: Any, *others: Any) -> Any:
            pair = jnp.stack([x, again(x, f(x, *others))], axis)
            return jax.vmap(lambda a: f(a, *others), in_axes=axis, out_axes=axis)(pair)

        return nested

    return wrap


def _vmap_of_sequence(f: Function, again: Again) -> Function:
    return lambda x, *others: jax.vmap(lambda row: f(row, *others))(x)


NESTINGS: dict[str, Nesting] = {
    "plain": Nesting(lambda f, again: f),
    "jit": Nesting(lambda f, again: jax.jit(f)),
    "checkpoint": Nesting(lambda f, again: jax.checkpoint(f)),
    "twice": Nesting(lambda f, again: lambda x, *others: f(again(x, f(x, *others)), *others)),
    "scan": Nesting(_scan(3)),
    "scan reversed": Nesting(_scan(2, reverse=True)),
    "scan of length 0": Nesting(_scan(0)),
    "scan of length 1": Nesting(_scan(1)),
    "scan of constants": Nesting(_scan_of_constants),
    "scan of a sequence": Nesting(_scan_of_sequence(False), lifted=True),
    "scan of a sequence reversed": Nesting(_scan_of_sequence(True), lifted=True),
    "map of a sequence": Nesting(
        lambda f, again: lambda x, *others: lax.map(lambda row: f(row, *others), x), lifted=True
    ),
    "while with a count": Nesting(_while(lambda i, x: i < 2), smooth=False),
    "while a sum says so": Nesting(_while(lambda i, x: i < 1 + count(x) % 3), smooth=False),
    "while a maximum says so": Nesting(_while(lambda i, x: (i < 1) | ((i < 3) & (count(x) > 2))), smooth=False),
    "fori_loop": Nesting(_fori(lambda x: 2)),
    "fori_loop as far as a sum says": Nesting(_fori(lambda x: 1 + count(x) % 2), smooth=False),
    "cond, shared": Nesting(_cond(lambda x: jnp.sin(1.0) > 0)),
    "cond, reduced": Nesting(_cond(lambda x: count(x) % 2 == 0)),
    "switch": Nesting(_switch),
    "grad of a mean": Nesting(_gradient(jnp.mean), derivative="backwards"),
    "grad of a sum": Nesting(_gradient(jnp.sum), derivative="backwards"),
    "grad of shared weights": Nesting(_gradient_of_weights, derivative="backwards"),
    "vjp": Nesting(_vjp, derivative="backwards"),
    "custom_vjp": Nesting(_with_its_own_vjp, derivative="backwards"),
    "jvp": Nesting(_jvp, derivative="forwards"),
    "linearize": Nesting(_linearized, derivative="forwards"),
    "vmap in front": Nesting(_vmap(0)),
    "vmap at the end": Nesting(_vmap(-1)),
    "vmap of a sequence": Nesting(_vmap_of_sequence, lifted=True),
}
