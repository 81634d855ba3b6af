"""How an equation is lowered: a rule per primitive, from the values of its inputs to those of its outputs."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta.worker.kernels.ir import ELEMENTWISE, Kind, Reg
from fragmenta.worker.kernels.values import (
    WIDE,
    Builder,
    Memory,
    NoRule,
    Rows,
    merged_tags,
    register_type,
)

Rule = Callable[[Builder, Any, list[Any]], list[Any]]
RULES: dict[str, Rule] = {}
"""The rule of each primitive."""

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "is_finite")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of some primitives."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def aligned(builder: Builder, values: list[Any], shape: tuple[int, ...]) -> list[Rows]:
    """Values that are combined element by element, in registers of the same kind."""
    held = [value for value in values if isinstance(value, Rows) and value.shape]
    wide = {v.wide + len(shape) - len(v.shape) for v in held if v.wide is not None}
    tags = None
    if held and not any(tags := _tags_of(held, shape)):
        tags = None
    views = [value for value in values if isinstance(value, Memory) and len(value.shape) == len(shape)]
    if tags is None:
        tags = builder.default_tags(shape) if views else ((),) * len(shape)
    if not wide:
        wide = _wide_dimension(views, held, shape, tags)
    if len(wide) > 1:
        raise NoRule("two wide dimensions")
    axis = next(iter(wide), None)
    return [builder.rows(value, shape, tags, axis) for value in values]


def _tags_of(held: list[Rows], shape: tuple[int, ...]) -> Any:
    padded = [((),) * (len(shape) - len(v.shape)) + v.tags for v in held]
    return tuple(next((tag for tag in tags if tag), ()) for tags in zip(*padded, strict=True))


def _wide_dimension(views: list[Memory], held: list[Rows], shape: tuple[int, ...], tags: Any) -> set[int]:
    for i in reversed(range(len(shape))):
        apart = any(v.regs.shape[i - len(shape)] > 1 for v in held if len(v.shape) >= len(shape) - i)
        varies = any(view.shape[i] == shape[i] and view.strides[i] for view in views)
        if shape[i] >= WIDE and not tags[i] and not apart and varies:
            return {i}
    return set()


def combine(
    builder: Builder, name: str, values: list[Any], shape: tuple[int, ...], dtype: Any, **attributes: Any
) -> Rows:
    """An elementwise operation."""
    parts = aligned(builder, values, shape)
    tags = merged_tags(parts)
    wide = parts[0].wide
    target = "bool" if name in COMPARISONS else register_type(dtype)
    grids: Any = np.broadcast_arrays(*(part.regs for part in parts))
    regs = np.empty(grids[0].shape, object)
    width = shape[wide] if wide is not None else 0
    for position in np.ndindex(*regs.shape):
        inputs = tuple(grid[position] for grid in grids)
        regs[position] = operate(builder, name, inputs, target, width, **attributes)
    return Rows(regs, np.dtype(dtype).name, shape, tags, wide)


def operate(builder: Builder, name: str, inputs: tuple[Reg, ...], dtype: str, width: int, **attributes: Any) -> Reg:
    """An elementwise operation on registers of any kinds."""
    kinds = {reg.kind for reg in inputs}
    if kinds == {Kind.ROW}:
        return builder.emit(name, inputs, Kind.ROW, dtype, **attributes)
    varies = Kind.TILE in kinds or any(reg.kind is Kind.ROW and not reg.uniform for reg in inputs)
    spread = tuple(
        builder.emit("spread", (reg,), Kind.SPREAD, reg.dtype) if reg.kind is Kind.ROW and not reg.uniform else reg
        for reg in inputs
    )
    return builder.emit(name, spread, Kind.TILE if varies else Kind.COLUMNS, dtype, width, **attributes)


def _elementwise(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    out, name = equation.outvars[0].aval, equation.primitive.name
    if name in ("and", "or", "xor", "not") and out.dtype == bool:
        name = f"logical_{name}"
    return [combine(builder, name, values, out.shape, out.dtype)]


RULES.update(dict.fromkeys(ELEMENTWISE, _elementwise))


@rule("add_any")
def _add_any(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    out = equation.outvars[0].aval
    return [combine(builder, "add", values, out.shape, out.dtype)]


@rule("integer_pow")
def _integer_pow(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    out, power = equation.outvars[0].aval, equation.params["y"]
    if not 0 < abs(power) <= 8:
        raise NoRule(f"the power {power}")
    result = values[0]
    for _ in range(abs(power) - 1):
        result = combine(builder, "mul", [result, values[0]], out.shape, out.dtype)
    if power < 0:
        result = combine(builder, "div", [np.ones((), out.dtype), result], out.shape, out.dtype)
    return [result]


@rule("select_n")
def _select(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    out, which = equation.outvars[0].aval, equation.invars[0].aval
    if which.dtype != bool:
        raise NoRule("a choice among more than two")
    if len(values) == 2:
        return [values[1]]
    if which.shape != out.shape and which.shape:
        raise NoRule("a choice by another shape")
    return [combine(builder, "select", [values[0], values[2], values[1]], out.shape, out.dtype)]


@rule("clamp")
def _clamp(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    out = equation.outvars[0].aval
    low, x, high = values
    floor = combine(builder, "max", [x, low], out.shape, out.dtype)
    return [combine(builder, "min", [floor, high], out.shape, out.dtype)]


@rule("convert_element_type")
def _convert(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    out, value = equation.outvars[0].aval, values[0]
    source, target = register_type(equation.invars[0].aval.dtype), register_type(out.dtype)
    if source == target == "f32" and isinstance(value, Memory):
        return [value]  # products round their factors themselves
    if source == target:
        rows = combine(builder, "convert", values, out.shape, out.dtype) if not isinstance(value, Rows) else value
        return [dataclasses.replace(rows, dtype=out.dtype.name)]
    return [combine(builder, "convert", values, out.shape, out.dtype)]


@rule("bitcast_convert_type")
def _bitcast(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    out, given = equation.outvars[0].aval, equation.invars[0].aval
    if out.dtype.itemsize != 4 or given.dtype.itemsize != 4:
        raise NoRule("a cast of bits to another size")
    return [combine(builder, "bitcast", values, out.shape, out.dtype)]


@rule("threefry2x32")
def _threefry(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    shape = np.broadcast_shapes(*(v.aval.shape for v in equation.invars))
    parts = [builder.unpacked(part) for part in aligned(builder, values, shape)]
    grids: Any = np.broadcast_arrays(*(part.regs for part in parts))
    results = [np.empty(grids[0].shape, object) for _ in range(2)]
    for position in np.ndindex(*grids[0].shape):
        words = tuple(grid[position] for grid in grids)
        pair = builder.emit_all("threefry", words, ((Kind.ROW, "u32"),) * 2)
        for result, word in zip(results, pair, strict=True):
            result[position] = word
    return [Rows(regs, "uint32", shape, merged_tags(parts)) for regs in results]
