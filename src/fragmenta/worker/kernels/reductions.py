"""Rules of primitives that reduce: within a row, or over all rows."""

import math
from typing import Any

import numpy as np

from fragmenta.worker.kernels.ir import Kind
from fragmenta.worker.kernels.rules import aligned, operate, rule
from fragmenta.worker.kernels.values import WIDE, Builder, NoRule, Rows, Summed, register_type

REDUCTIONS = {
    "reduce_sum": ("add", "sum"),
    "reduce_max": ("max", "max"),
    "reduce_min": ("min", "min"),
    "reduce_prod": ("mul", ""),
    "reduce_and": ("and", ""),
    "reduce_or": ("or", ""),
    "reduce_xor": ("xor", ""),
}


@rule(*REDUCTIONS)
def _reduce(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    out, axes = equation.outvars[0].aval, tuple(equation.params["axes"])
    value = values[0]
    if not isinstance(value, Rows):
        shape = equation.invars[0].aval.shape
        value = aligned(builder, [value], shape)[0]
    if any(value.tags[axis] for axis in axes):
        return [_row_sum(builder, equation, value, axes)]
    name, across = REDUCTIONS[equation.primitive.name]
    if out.dtype == bool:
        name = f"logical_{name}"
    regs: Any = value.regs
    wide = value.wide
    for axis in axes:
        count = value.shape[axis]
        if axis == wide:
            regs = _reduce_tiles(builder, regs, across, count)
        elif regs.shape[axis] == 1 and count > 1:
            regs = np.concatenate([regs] * count, axis) if count <= WIDE else _refused("a long sum of equal numbers")
    if wide in axes:
        wide = None
    for axis in axes:
        folded: Any = regs.take([0], axis)
        for i in range(1, regs.shape[axis]):
            grid = np.empty(folded.shape, object)
            for position in np.ndindex(*grid.shape):
                pair = folded[position], regs.take([i], axis)[position]
                width = value.shape[wide] if wide is not None else 0
                grid[position] = operate(builder, name, pair, register_type(out.dtype), width)
            folded = grid
        regs = folded
    keep = [i for i in range(len(value.shape)) if i not in axes]
    regs = regs.reshape([regs.shape[i] for i in keep])
    tags = tuple(value.tags[i] for i in keep)
    return [Rows(regs, out.dtype.name, out.shape, tags, None if wide is None else keep.index(wide))]


def _refused(reason: str) -> Any:
    raise NoRule(reason)


def _reduce_tiles(builder: Builder, regs: Any, across: str, count: int) -> np.ndarray:
    if not across:
        raise NoRule("a reduction of a wide dimension")
    result = np.empty(regs.shape, object)
    for position in np.ndindex(*regs.shape):
        reg = regs[position]
        if reg.kind is Kind.ROW:
            if across == "sum":
                times = builder.const(count, reg.dtype)
                reg = builder.emit("mul", (reg, times), Kind.ROW, reg.dtype)
        else:
            reg = builder.emit("reduce", (reg,), Kind.ROW, reg.dtype, how=across)
        result[position] = reg
    return result


def _row_sum(builder: Builder, equation: Any, value: Rows, axes: tuple[int, ...]) -> Summed:
    """A sum over all rows, in which every block adds up its own."""
    out = equation.outvars[0].aval
    if equation.primitive.name != "reduce_sum" or register_type(out.dtype) != "f32":
        raise NoRule("a reduction over rows that is no sum of floats")
    atoms = sorted(atom for axis in axes for atom in value.tags[axis])
    if atoms != list(range(len(builder.space))) or any(value.shape[i] > 1 and not value.tags[i] for i in axes):
        raise NoRule("a sum over a part of the rows' dimensions")
    others = [i for i in range(len(value.shape)) if i not in axes]
    if len([i for i in others if value.shape[i] > 1]) > 1:
        raise NoRule("a sum over rows of matrices")
    offset = builder.sums
    builder.sums += math.prod(out.shape)
    full = np.broadcast_to(value.regs, [n if i in others and i != value.wide else 1 for i, n in enumerate(value.shape)])
    for i, reg in enumerate(full.flat):
        if value.wide is not None and reg.kind is Kind.ROW:
            raise NoRule("a sum over rows of equal numbers")
        builder.effect("sum", (reg,), place=offset + i)
    return Summed(offset, out.shape)


@rule("argmax", "argmin")
def _arg(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    """The first of the largest, by comparing one after the other; a NaN counts as the largest, as in JAX."""
    out, (axis,) = equation.outvars[0].aval, equation.params["axes"]
    value = aligned(builder, values, equation.invars[0].aval.shape)[0]
    value = builder.unpacked(value)
    if value.tags[axis]:
        raise NoRule("the largest among rows")
    dtype, beats = register_type(out.dtype), "gt" if equation.primitive.name == "argmax" else "lt"
    keep = [i for i in range(len(value.shape)) if i != axis]
    grid = np.empty([value.regs.shape[i] for i in keep], object)
    for position in np.ndindex(*grid.shape):
        candidates = value.regs[(*position[:axis], slice(None), *position[axis:])]
        best, place = candidates[0], builder.const(0, dtype)
        for i, reg in enumerate(candidates[1:], 1):
            wins = builder.emit(beats, (reg, best), Kind.ROW, "bool")
            if reg.dtype == "f32":
                not_number = builder.emit("ne", (reg, reg), Kind.ROW, "bool")
                number = builder.emit("eq", (best, best), Kind.ROW, "bool")
                first = builder.emit("logical_and", (not_number, number), Kind.ROW, "bool")
                wins = builder.emit("logical_or", (wins, first), Kind.ROW, "bool")
            best = builder.emit("select", (wins, reg, best), Kind.ROW, best.dtype)
            place = builder.emit("select", (wins, builder.const(i, dtype), place), Kind.ROW, dtype)
        grid[position] = place
    return [Rows(grid, out.dtype.name, out.shape, tuple(value.tags[i] for i in keep))]
