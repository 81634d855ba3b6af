"""Rules of primitives that choose elements by computed numbers, and of numbers that count."""

import dataclasses
from typing import Any

import numpy as np

from fragmenta.worker.kernels.ir import Kind
from fragmenta.worker.kernels.rules import aligned, rule
from fragmenta.worker.kernels.values import Builder, Memory, NoRule


@rule("gather")
def _gather(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    """Rows of an array by their numbers, as `x[rows]` and `take_along_axis` do: loads at computed addresses."""
    numbers, mode = equation.params["dimension_numbers"], str(equation.params["mode"])
    operand, out = values[0], equation.outvars[0].aval
    if not isinstance(operand, Memory):
        raise NoRule("numbered elements of registers")
    index_shape, sizes = equation.invars[1].aval.shape, equation.params["slice_sizes"]
    indices = builder.unpacked(aligned(builder, [values[1]], index_shape)[0])
    if "CLIP" not in mode and "PROMISE" not in mode:
        raise NoRule("numbered elements that may be outside")
    if indices.tags[-1] or indices.regs.size != len(numbers.start_index_map):
        raise NoRule("several numbers per row")
    batch = [i for i in range(len(out.shape)) if i not in numbers.offset_dims]
    offsets = list(numbers.offset_dims)
    strides = [0] * len(out.shape)
    tags: list[tuple[int, ...]] = [()] * len(out.shape)
    terms = list(operand.terms)
    for place, tag in zip(batch, indices.tags[:-1], strict=True):
        tags[place] = tag
    for dimension, place in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        terms += builder.row_terms((indices.tags[place],), (operand.strides[dimension],))
        if not indices.tags[place]:
            raise NoRule("numbered elements of another dimension")
    for dimension, reg in zip(numbers.start_index_map, indices.regs.flat, strict=True):
        last = operand.shape[dimension] - sizes[dimension]
        reg = reg if reg.dtype == "i32" else builder.emit("convert", (reg,), Kind.ROW, "i32")
        # Also where indices are promised to be inside: a wrong one would stop the whole process.
        reg = builder.emit("max", (reg, builder.const(0, "i32")), Kind.ROW, "i32")
        reg = builder.emit("min", (reg, builder.const(last, "i32")), Kind.ROW, "i32")
        terms.append((reg, operand.strides[dimension]))
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [d for d in range(len(operand.shape)) if d not in gone]
    for place, dimension in zip(offsets, kept, strict=True):
        strides[place] = operand.strides[dimension]
    view = operand.replace(shape=out.shape, strides=tuple(strides), terms=tuple(terms))
    wide = next((p for p in offsets if out.shape[p] >= 16 and strides[p]), None)
    rows = builder.rows(view, out.shape, None, wide)
    return [dataclasses.replace(rows, tags=tuple(tags))]


@rule("dynamic_slice")
def _dynamic_slice(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    view, sizes = values[0], equation.params["slice_sizes"]
    if not isinstance(view, Memory):
        raise NoRule("a part of registers at a computed place")
    terms = list(view.terms)
    for i, (start, size) in enumerate(zip(values[1:], sizes, strict=True)):
        if size == view.shape[i]:
            continue
        first = builder.rows(start, ())
        (reg,) = first.regs.flat
        if not reg.uniform:
            raise NoRule("a part of an array that differs by row")
        reg = builder.emit("max", (reg, builder.const(0, reg.dtype)), Kind.ROW, reg.dtype)
        reg = builder.emit("min", (reg, builder.const(view.shape[i] - size, reg.dtype)), Kind.ROW, reg.dtype)
        terms.append((reg, view.strides[i]))
    return [view.replace(shape=tuple(sizes), terms=tuple(terms))]


@rule("iota")
def _iota(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    out, axis = equation.outvars[0].aval, equation.params["dimension"]
    if values:
        raise NoRule("a dynamic iota")
    sizes = [n if i == axis else 1 for i, n in enumerate(out.shape)]
    counted = np.arange(out.shape[axis], dtype=out.dtype).reshape(sizes)
    return [np.broadcast_to(counted, out.shape)]
