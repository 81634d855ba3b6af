"""A jaxpr without calls and without keys: calls inlined, keys as the integers that they are, random bits as hashes.

What is computed stays the same, bit for bit.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.tracing.jaxprs import (
    CALLS,
    bind,
    called_jaxpr,
    inner_jaxprs,
    is_literal,
    key_dtype,
    open_jaxpr,
    scan_parts,
)
from fragmenta.worker.kernels.platforms import chosen_by_platform, is_choice

IDENTITIES = ("stop_gradient", "copy", "copy_p", "optimization_barrier", "random_wrap", "random_unwrap")
"""Primitives that only mark their inputs, where keys are integers."""


def plain(closed: Any) -> Any:
    """The same program over raw arrays, of plain equations and loops of such."""
    inner, constants = open_jaxpr(closed)
    shapes = [raw_shape(variable.aval) for variable in inner.invars]
    traced = jax.make_jaxpr(lambda *arrays: evaluate(inner, constants, arrays))(*shapes)
    # Generators are functions of jitted parts, which the first pass brings in.
    return plain(traced) if any(_has_calls(equation) for equation in traced.jaxpr.eqns) else traced


def _has_calls(equation: Any) -> bool:
    inner = (sub for item in inner_jaxprs(equation) for sub in open_jaxpr(item)[0].eqns)
    return equation.primitive.name in CALLS or any(map(_has_calls, inner))


def raw_shape(aval: Any) -> jax.ShapeDtypeStruct:
    """The shape of a value as integers, if it is an array of keys."""
    if not key_dtype(aval.dtype):
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return jax.ShapeDtypeStruct(data.shape, data.dtype)


def evaluate(jaxpr: Any, constants: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """Evaluate an open jaxpr on raw arrays, with calls inlined."""
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(_raw, constants), strict=True))
    known.update(zip(jaxpr.invars, arrays, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if is_literal(atom) else known[atom]

    for equation in jaxpr.eqns:
        results = _equation(equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(equation: Any, values: list[Any]) -> list[Any]:
    name = equation.primitive.name
    if name in CALLS:
        inner, constants = open_jaxpr(called_jaxpr(equation))
        return evaluate(inner, constants, values)
    if name in IDENTITIES:
        return values[: len(equation.outvars)]
    if name in _RANDOM:
        return [_random(equation, values)]
    if name == "scan":
        return _scan(equation, values)
    if name == "cond":
        branches = [functools.partial(_branch, branch) for branch in equation.params["branches"]]
        if is_choice(equation):
            return chosen_by_platform(equation, branches, values[1:])
        return list(jax.lax.switch(values[0], branches, *values[1:]))
    if name == "while":
        return _while(equation, values)
    keyed = [key_dtype(atom.aval.dtype) for atom in equation.invars]
    if any(keyed) or any(key_dtype(variable.aval.dtype) for variable in equation.outvars):
        # The integers of a key are a last dimension, along which every primitive does the same.
        axes = tuple(-1 if is_key else None for is_key in keyed)
        return list(jax.vmap(lambda *x: tuple(bind(equation, list(x))), axes, -1)(*values))
    return bind(equation, values)


def _raw(constant: Any) -> Any:
    return jax.random.key_data(constant) if key_dtype(jnp.asarray(constant).dtype) else constant


def _branch(closed: Any, *operands: Any) -> tuple[Any, ...]:
    inner, constants = open_jaxpr(closed)
    return tuple(evaluate(inner, constants, operands))


def _scan(equation: Any, values: list[Any]) -> list[Any]:
    parts, params = scan_parts(equation), equation.params
    inner, constants = open_jaxpr(params["jaxpr"])
    fixed, carries = values[: parts.constants], values[parts.constants : parts.constants + parts.carries]

    def body(carry: Any, slices: Any) -> tuple[Any, Any]:
        results = evaluate(inner, constants, [*fixed, *carry, *slices])
        return results[: parts.carries], results[parts.carries :]

    carries = [jnp.asarray(x) for x in carries]
    options = {"length": params["length"], "reverse": params["reverse"], "unroll": params["unroll"]}
    last, stacked = jax.lax.scan(body, carries, values[parts.constants + parts.carries :], **options)
    return [*last, *stacked]


def _while(equation: Any, values: list[Any]) -> list[Any]:
    params = equation.params
    test_count, body_count = params["cond_nconsts"], params["body_nconsts"]
    for_test, for_body = values[:test_count], values[test_count : test_count + body_count]

    def test(carry: Any) -> Any:
        return _branch(params["cond_jaxpr"], *for_test, *carry)[0]

    def body(carry: Any) -> Any:
        return list(_branch(params["body_jaxpr"], *for_body, *carry))

    return jax.lax.while_loop(test, body, [jnp.asarray(x) for x in values[test_count + body_count :]])


_RANDOM = ("random_bits", "random_split", "random_fold_in", "random_seed")


def _random(equation: Any, values: list[Any]) -> Any:
    """A generator's own hashes, for every key of an array."""
    name, params = equation.primitive.name, equation.params
    if name == "random_seed":
        generator, depth = params["impl"], np.ndim(values[0])
        return _nested(generator.seed, depth)(values[0])
    aval = equation.invars[0].aval
    generator, depth = aval.dtype._impl, aval.ndim
    if name == "random_bits":
        bits = functools.partial(generator.random_bits, bit_width=params["bit_width"], shape=params["shape"])
        return _nested(bits, depth)(values[0])
    if name == "random_split":
        return _nested(functools.partial(generator.split, shape=params["shape"]), depth)(values[0])
    data = values[1]
    if np.ndim(data):
        return _nested(generator.fold_in, depth)(values[0], jnp.broadcast_to(data, aval.shape))
    return _nested(lambda key: generator.fold_in(key, data), depth)(values[0])


def _nested(function: Any, depth: int) -> Any:
    for _ in range(depth):
        function = jax.vmap(function)
    return function


def folded(equation: Any, values: list[Any]) -> list[np.ndarray]:
    """The results of an equation of constants."""
    with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        return [
            np.asarray(x)
            for x in bind(
                equation,
                [jax.numpy.asarray(v, atom.aval.dtype) for v, atom in zip(values, equation.invars, strict=True)],
            )
        ]
