"""How much a traced program computes and moves: counted, not measured."""

import math
from typing import Any, NamedTuple

import numpy as np

from fragmenta.tracing.jaxprs import called_jaxpr, inner_jaxprs, is_literal, open_jaxpr

MOVES = ("gather", "scatter", "dynamic_slice", "dynamic_update_slice", "concatenate", "sort", "transpose", "reduce")
"""Beginnings of the names of primitives that read or write memory by themselves; others are fused."""
SHAPES = (
    "broadcast_in_dim",
    "reshape",
    "squeeze",
    "expand_dims",
    "slice",
    "split",
    "iota",
    "empty",
    "stop_gradient",
    "copy",
)
"""Beginnings of the names of primitives that compute nothing: what uses their results reads the original."""


class Amounts(NamedTuple):
    """What one run of a program takes."""

    operations: float = 0.0
    """Primitives that are run, those in loops as often as the loop has rounds."""
    flops: float = 0.0
    """Arithmetic operations."""
    bytes: float = 0.0
    """Bytes that are read from memory or written to it."""
    kernels: float = 0.0
    """Operations that a GPU does not fuse with others: of each of them it starts a program."""

    def __add__(self, other: "Amounts") -> "Amounts":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Amounts(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: float) -> "Amounts":
        """The same, `count` times."""
        return Amounts(*(count * amount for amount in self))


def amounts(jaxpr: Any) -> Amounts:
    """The amounts of a jaxpr. A `while` counts once, and a `cond` as its largest branch."""
    total = Amounts()
    for equation in open_jaxpr(jaxpr)[0].eqns:
        total += _of(equation)
    return total


def peak(jaxpr: Any) -> int:
    """Bytes that the results of a program take at once, if each is kept until it is last used."""
    inside, last = open_jaxpr(jaxpr)[0], {}
    for number, equation in enumerate(inside.eqns):
        last.update({atom: number for atom in equation.invars if not is_literal(atom)})
    kept = {atom for atom in inside.outvars if not is_literal(atom)}
    made: dict[Any, int] = {}
    live = most = 0
    for number, equation in enumerate(inside.eqns):
        called = called_jaxpr(equation)
        inner = max((peak(one) for one in ([called] if called is not None else inner_jaxprs(equation))), default=0)
        sizes = {atom: _bytes(atom) for atom in equation.outvars}
        most = max(most, live + (inner if called is not None else inner + sum(sizes.values())))
        made.update(sizes)
        live += sum(sizes.values())
        done = {atom for atom in (*equation.invars, *equation.outvars) if not is_literal(atom) and atom in made}
        for atom in done - kept:
            if last.get(atom, number) <= number:
                live -= made.pop(atom)
        most = max(most, live)
    return most


def _of(equation: Any) -> Amounts:
    name = equation.primitive.name
    inner = [amounts(jaxpr) for jaxpr in inner_jaxprs(equation)]
    if called_jaxpr(equation) is not None:
        return inner[0]
    if name == "scan":
        return inner[0].times(equation.params["length"])
    if name == "while":
        return inner[0] + inner[1]
    if name == "cond":
        return max(inner, key=lambda amount: amount.flops)
    read = sum(_bytes(atom) for atom in equation.invars if not is_literal(atom))
    written = sum(_bytes(atom) for atom in equation.outvars)
    largest = max((_size(atom) for atom in (*equation.invars, *equation.outvars)), default=0)
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        depth = math.prod(equation.invars[0].aval.shape[d] for d in contracted)
        return Amounts(1, 2.0 * depth * _size(equation.outvars[0]), read + written, 1)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        features = equation.outvars[0].aval.shape[equation.params["dimension_numbers"].out_spec[1]]
        return Amounts(1, 2.0 * _size(equation.outvars[0]) * math.prod(kernel) / max(features, 1), read + written, 1)
    if name in ("sort", "top_k"):
        return Amounts(1, largest * max(1.0, math.log2(max(largest, 2))), read + written, 1)
    if name.startswith(("dynamic_update_slice", "scatter")):
        moved = 2 * sum(map(_bytes, equation.invars[1:]))  # done in place
        return Amounts(1, _size(equation.invars[-1]), moved, 1)
    if name.startswith(("gather", "dynamic_slice")):
        return Amounts(1, written, 2 * written, 1)
    if name.startswith(SHAPES):
        return Amounts(1)
    if name.startswith(MOVES):
        return Amounts(1, largest, read + written, 1)
    if name in ("random_bits", "threefry2x32"):
        return Amounts(1, 40.0 * largest, written, 1)
    return Amounts(1, largest, 0.0)


def _size(atom: Any) -> int:
    return math.prod(atom.aval.shape) if hasattr(atom.aval, "shape") else 1


def _bytes(atom: Any) -> int:
    dtype = getattr(atom.aval, "dtype", np.dtype(np.float32))
    return _size(atom) * getattr(dtype, "itemsize", 4)
