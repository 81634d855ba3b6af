"""What is known of values before anything runs: constants, and what is computed from nothing but them.

It tells a gather by `arange` over the environments, which stays within each replica's part, from any other.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LARGEST = 2**16
"""Entries of an array that is remembered."""
Known = np.ndarray | None


def known_constant(value: Any, aval: Any) -> Known:
    """A constant, if it is plain numbers and small."""
    if not isinstance(aval.dtype, np.dtype) or aval.dtype.kind not in "biuf" or math.prod(aval.shape) > LARGEST:
        return None
    return np.asarray(value, aval.dtype)


def distinct(known: np.ndarray) -> np.ndarray:
    """All values of an array, without the copies that a broadcast makes."""
    return known[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in known.strides)]


def known_results(equation: Any, inputs: Sequence[Known]) -> list[Known]:
    """What is known of an equation's results."""
    outputs = equation.outvars
    if len(outputs) != 1 or any(known is None for known in inputs):
        return [None] * len(outputs)
    compute = _COMPUTE.get(equation.primitive.name)
    aval = outputs[0].aval
    if compute is None or not isinstance(aval.dtype, np.dtype):
        return [None]
    uniform = equation.primitive.name == "broadcast_in_dim" and inputs[0] is not None and inputs[0].ndim == 0
    if aval.size > LARGEST and not uniform:
        return [None]
    with np.errstate(all="ignore"):
        found = np.asarray(compute(equation, *inputs))
    return [found if found.dtype == aval.dtype else found.astype(aval.dtype)]


def known_columns(equation: Any, columns: Sequence[tuple[Known, ...]]) -> tuple[Known, ...]:
    """Of each entry of the last dimension of a result, what is known: of indices, put together from several."""
    if equation.primitive.name == "concatenate" and equation.params["dimension"] == equation.outvars[0].aval.ndim - 1:
        return tuple(column for found in columns for column in found)
    return ()


def columns_of(known: Known, aval: Any) -> tuple[Known, ...]:
    """The entries of the last dimension of a value."""
    count = aval.shape[-1] if aval.shape else 0
    if count > 8:
        return ()
    return tuple(known[..., i] if known is not None else None for i in range(count))


def _broadcast(equation: Any, x: np.ndarray) -> np.ndarray:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    given = [1] * len(shape)
    for at, size in zip(places, x.shape, strict=True):
        given[at] = size
    return np.broadcast_to(x.reshape(given), shape)


def _iota(equation: Any) -> np.ndarray:
    shape, at = equation.params["shape"], equation.params["dimension"]
    row = np.arange(shape[at]).reshape([-1 if d == at else 1 for d in range(len(shape))])
    return np.broadcast_to(row, shape).astype(equation.params["dtype"])


def _remainder(_: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(y == 0, 0, np.fmod(x, np.where(y == 0, 1, y)))


def _quotient(_: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.divide(x, y) if x.dtype.kind == "f" else np.where(y == 0, 0, np.trunc(x / np.where(y == 0, 1, y)))


def _plain(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda equation, *inputs: function(*inputs)


_COMPUTE: dict[str, Callable[..., np.ndarray]] = {
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "reshape": lambda equation, x: x.reshape(equation.params["new_sizes"]),
    "squeeze": lambda equation, x: np.squeeze(x, tuple(equation.params["dimensions"])),
    "transpose": lambda equation, x: np.transpose(x, equation.params["permutation"]),
    "concatenate": lambda equation, *xs: np.concatenate(xs, equation.params["dimension"]),
    "convert_element_type": lambda equation, x: x.astype(equation.params["new_dtype"]),
    "select_n": lambda equation, which, *cases: np.choose(which.astype(int), cases),
    "div": _quotient,
    "rem": _remainder,
    "slice": lambda equation, x: x[
        tuple(
            slice(a, b, c)
            for a, b, c in zip(
                equation.params["start_indices"],
                equation.params["limit_indices"],
                equation.params["strides"] or [1] * x.ndim,
                strict=True,
            )
        )
    ],
    **{
        name: _plain(function)
        for name, function in {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "neg": np.negative,
            "max": np.maximum,
            "min": np.minimum,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
            "eq": np.equal,
            "ne": np.not_equal,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "not": np.invert,
            "copy": np.asarray,
            "stop_gradient": np.asarray,
        }.items()
    },
}
