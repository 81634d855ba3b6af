"""Constant folding: the values that are known before anything runs.

It distinguishes a gather by `arange` over the environments, which stays within each replica's part, from any other.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LARGEST = 2**16
"""Arrays with more entries than this are not folded."""
Known = np.ndarray | None


def known_constant(value: Any, aval: Any) -> Known:
    """A constant as a NumPy array, or None if it is not numeric or too large."""
    if not isinstance(aval.dtype, np.dtype) or aval.dtype.kind not in "biuf" or math.prod(aval.shape) > LARGEST:
        return None
    return np.asarray(value, aval.dtype)


def distinct(known: np.ndarray) -> np.ndarray:
    """The entries of an array without the copies that a broadcast makes."""
    return known[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in known.strides)]


def known_results(equation: Any, inputs: Sequence[Known]) -> list[Known]:
    """The values of an equation's results where they are known, else None."""
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
        result = np.asarray(compute(equation, *inputs))
    return [result if result.dtype == aval.dtype else result.astype(aval.dtype)]


def known_columns(equation: Any, columns: Sequence[tuple[Known, ...]]) -> tuple[Known, ...]:
    """Known columns (entries of the last dimension) of a result, for index arrays concatenated from several."""
    if equation.primitive.name == "concatenate" and equation.params["dimension"] == equation.outvars[0].aval.ndim - 1:
        return tuple(column for group in columns for column in group)
    return ()


def columns_of(known: Known, aval: Any) -> tuple[Known, ...]:
    """The columns (entries of the last dimension) of a value; None each if it is unknown."""
    count = aval.shape[-1] if aval.shape else 0
    if count > 8:
        return ()
    return tuple(known[..., i] if known is not None else None for i in range(count))


def _broadcast(equation: Any, x: np.ndarray) -> np.ndarray:
    shape, dims = equation.params["shape"], equation.params["broadcast_dimensions"]
    sizes = [1] * len(shape)
    for at, size in zip(dims, x.shape, strict=True):
        sizes[at] = size
    return np.broadcast_to(x.reshape(sizes), shape)


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
