"""The rule of matrix products: with weights that all rows share, or over all rows."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from fragmenta.worker.kernels.ir import Kind, Weights
from fragmenta.worker.kernels.rules import aligned, rule
from fragmenta.worker.kernels.values import WIDE, Builder, Memory, NoRule, Rows, Summed, register_type


def _exact(equation: Any) -> bool:
    """Whether a product must keep all bits of its factors."""
    precision = equation.params["precision"]
    sides = precision if isinstance(precision, tuple) else (precision,)
    return jax.lax.Precision.HIGHEST in sides


@rule("dot_general")
def _dot(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    (left_over, right_over), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left, right = values
    if left_batch or right_batch:
        raise NoRule("a product with batch dimensions")
    if len(left_over) != 1 or len(right_over) != 1:
        return [_outer(builder, equation, values, tuple(left_over), tuple(right_over))]
    sides = ((left, left_over[0]), (right, right_over[0]))
    if any(isinstance(side, Rows) and side.tags[over] for side, over in sides):
        return [_outer(builder, equation, values, tuple(left_over), tuple(right_over))]
    half = equation.invars[0].aval.dtype.name == "bfloat16"
    if isinstance(left, Rows) and isinstance(right, Memory):
        return [_layer(builder, equation, left, right, left_over[0], right_over[0], False, half)]
    if isinstance(left, Memory) and isinstance(right, Rows):
        return [_layer(builder, equation, right, left, right_over[0], left_over[0], True, half)]
    if isinstance(left, Memory) and isinstance(right, Memory):
        shape = equation.invars[0].aval.shape
        rows = aligned(builder, [left], shape)[0]
        if any(rows.tags) and not rows.tags[left_over[0]]:
            return [_layer(builder, equation, rows, right, left_over[0], right_over[0], False, half)]
    raise NoRule("a product of two values per row")


def _layer(
    builder: Builder, equation: Any, rows: Rows, matrix: Memory, over: int, inner: int, swapped: bool, half: bool
) -> Rows:
    """A product of rows with a matrix that they share."""
    out = equation.outvars[0].aval
    if len(matrix.shape) != 2 or matrix.terms:
        raise NoRule(
            "a product with weights that are no matrix" if not matrix.terms else "weights that change in the loop"
        )
    if rows.tags[over]:
        raise NoRule("a product over rows")
    if register_type(out.dtype) != "f32" or register_type(matrix.dtype) != "f32":
        raise NoRule("a product of integers")
    if rows.wide is not None and rows.wide != over:
        raise NoRule("a product along another dimension than the wide one")
    count, width = matrix.shape[inner], matrix.shape[1 - inner]
    if max(count, width) > 512:
        raise NoRule(f"a layer of {count} x {width}")
    strides = (matrix.strides[inner], matrix.strides[1 - inner])
    weights = Weights(matrix.array, matrix.offset, count, width, strides, half, _exact(equation))
    full = np.broadcast_to(
        rows.regs, [count if i == over and rows.wide is None else n for i, n in enumerate(rows.regs.shape)]
    )
    others = [i for i in range(len(rows.shape)) if i != over]
    grid = np.empty([full.shape[i] for i in others], object)
    for position in np.ndindex(*grid.shape):
        taken = full[(*position[:over], slice(None), *position[over:])]
        inputs = tuple(taken) if rows.wide is None else (taken[0],)
        if any(reg.kind is not Kind.TILE for reg in inputs) and rows.wide is not None:
            raise NoRule("a product of equal numbers")
        if rows.wide is None:
            inputs = (builder.emit("pack", inputs, Kind.TILE, "f32", count),)
        grid[position] = builder.emit("dot", inputs, Kind.TILE, "f32", width, weights=weights)
    shape = (*(rows.shape[i] for i in others), width)
    tags = (*(rows.tags[i] for i in others), ())
    result = Rows(grid[..., None], out.dtype.name, shape, tags, len(shape) - 1)
    if width < WIDE:
        result = builder.unpacked(result)
    if not swapped:
        return result
    # the matrix was the first factor, so its dimension comes first
    order = [len(shape) - 1, *range(len(shape) - 1)]
    wide = None if result.wide is None else 0
    return Rows(result.regs.transpose(order), result.dtype, out.shape, tuple(result.tags[i] for i in order), wide)


def _outer(
    builder: Builder, equation: Any, values: list[Any], left_over: tuple[int, ...], right_over: tuple[int, ...]
) -> Summed:
    """A product that sums over all rows: the gradient of weights."""
    out = equation.outvars[0].aval
    avals = [atom.aval for atom in equation.invars]
    sides = []
    for value, over, aval in zip(values, (left_over, right_over), avals, strict=True):
        if not isinstance(value, Rows):
            value = aligned(builder, [value], aval.shape)[0]
        atoms = [atom for axis in over for atom in value.tags[axis]]
        if atoms != list(range(len(builder.space))):
            raise NoRule("a product over a part of the rows' dimensions")
        rest = [i for i in range(len(value.shape)) if i not in over]
        if len(rest) != 1 or register_type(aval.dtype) != "f32":
            raise NoRule("a product over rows of more than vectors")
        value = (
            value if value.wide is not None else builder.rows(full_width(value, rest[0]), value.shape, None, rest[0])
        )
        (reg,) = value.regs.flat
        if reg.kind is not Kind.TILE:
            raise NoRule("a product over rows of equal numbers")
        sides.append(reg)
    offset = builder.sums
    builder.sums += math.prod(out.shape)
    half = equation.invars[0].aval.dtype.name == "bfloat16"
    builder.effect("outer", tuple(sides), place=offset, half=half, exact=_exact(equation))
    return Summed(offset, out.shape)


def full_width(value: Rows, axis: int) -> Rows:
    """The value with a register for each number along a dimension, even if all are the same; a tile needs them."""
    sizes = [value.shape[axis] if i == axis else n for i, n in enumerate(value.regs.shape)]
    return dataclasses.replace(value, regs=np.broadcast_to(value.regs, sizes))
