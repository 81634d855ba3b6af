"""Rules of primitives that only arrange numbers: in registers they cost nothing, in memory they change strides."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from fragmenta.worker.kernels.rules import aligned, rule
from fragmenta.worker.kernels.values import MOST_REGISTERS, Builder, Memory, NoRule, Rows, Summed


def _held(value: Any) -> Any:
    if isinstance(value, Summed):
        raise NoRule("a sum over rows that rows need")
    return value


@rule("broadcast_in_dim")
def _broadcast(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    value, shape, places = _held(values[0]), equation.params["shape"], equation.params["broadcast_dimensions"]
    if isinstance(value, Memory):
        strides = [0] * len(shape)
        for place, size, stride in zip(places, value.shape, value.strides, strict=True):
            strides[place] = stride if size == shape[place] else 0
        return [value.replace(shape=tuple(shape), strides=tuple(strides))]
    if not isinstance(value, Rows):
        sizes = [1] * len(shape)
        for place, size in zip(places, np.shape(value), strict=True):
            sizes[place] = size
        return [builder.rows(np.asarray(value).reshape(sizes), tuple(shape))]
    regs_shape, wide = [1] * len(shape), None
    tags: list[tuple[int, ...]] = [()] * len(shape)
    for i, place in enumerate(places):
        regs_shape[place], tags[place] = value.regs.shape[i], value.tags[i]
        wide = place if value.wide == i else wide
    if list(places) != sorted(places):
        raise NoRule("a broadcast that changes the order of dimensions")
    return [Rows(value.regs.reshape(regs_shape), value.dtype, tuple(shape), tuple(tags), wide)]


@rule("squeeze")
def _squeeze(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    axes = {axis % len(equation.invars[0].aval.shape) for axis in equation.params["dimensions"]}
    return [_select_dimensions(values[0], [i for i in range(len(equation.invars[0].aval.shape)) if i not in axes])]


@rule("transpose")
def _transpose(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    return [_select_dimensions(values[0], list(equation.params["permutation"]))]


def _select_dimensions(value: Any, order: list[int]) -> Any:
    """A value with its dimensions in another order, perhaps without some of size 1."""
    value = _held(value)
    rest = [
        i for i in range(np.ndim(value) if not isinstance(value, Memory | Rows) else len(value.shape)) if i not in order
    ]
    shape = tuple(value.shape[i] for i in order)
    if isinstance(value, Memory):
        return value.replace(shape=shape, strides=tuple(value.strides[i] for i in order))
    if not isinstance(value, Rows):
        return np.transpose(value, [*order, *rest]).reshape(shape)
    regs = value.regs.transpose([*order, *rest]).reshape([value.regs.shape[i] for i in order])
    wide = None if value.wide is None or value.wide in rest else order.index(value.wide)
    return Rows(regs, value.dtype, shape, tuple(value.tags[i] for i in order), wide)


@rule("reshape", "expand_dims")
def _reshape(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    value, shape = _held(values[0]), equation.outvars[0].aval.shape
    if isinstance(value, Memory):
        return [_reshaped_view(value, shape)]
    if not isinstance(value, Rows):
        return [np.reshape(value, shape)]
    regs_shape, tags, wide = [1] * len(shape), [()] * len(shape), None
    full = list(value.regs.shape)
    for old, new in _groups(value.shape, shape):
        inner = [tag for i in old for tag in value.tags[i]]
        if not inner:
            if len(old) == len(new) == 1:
                regs_shape[new[0]] = full[old[0]]
                wide = new[0] if value.wide == old[0] else wide
                continue
            if value.wide in old:
                raise NoRule("a wide dimension that is divided or merged")
            if all(full[i] == 1 for i in old):
                continue
            for i in old:
                full[i] = value.shape[i]
            for i in new:
                regs_shape[i] = shape[i]
            continue
        if any(not value.tags[i] for i in old):
            raise NoRule("rows merged with another dimension")
        for i in new:
            taken, size = [], 1
            while size < shape[i] and inner:
                taken.append(inner.pop(0))
                size *= builder.space[taken[-1]]
            if size != shape[i]:
                raise NoRule("rows that are divided otherwise")
            tags[i] = tuple(taken)
    if math.prod(full) > MOST_REGISTERS:
        raise NoRule(f"{math.prod(full)} numbers per row")
    regs = np.broadcast_to(value.regs, full).reshape(regs_shape)
    return [Rows(regs, value.dtype, tuple(shape), tuple(tags), wide)]


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Which dimensions become which by a reshape, dimensions of size 1 left out."""
    left, right = [i for i, n in enumerate(old) if n != 1], [i for i, n in enumerate(new) if n != 1]
    groups = []
    while left or right:
        if not left or not right:
            raise NoRule("an empty array")
        a, b = [left.pop(0)], [right.pop(0)]
        while (x := math.prod(old[i] for i in a)) != (y := math.prod(new[i] for i in b)):
            if (x < y and not left) or (x > y and not right):
                raise NoRule("an empty array")
            (a if x < y else b).append((left if x < y else right).pop(0))
        groups.append((a, b))
    return groups


def _reshaped_view(view: Memory, shape: tuple[int, ...]) -> Memory:
    strides = [0] * len(shape)
    for old, new in _groups(view.shape, shape):
        for i, j in itertools.pairwise(old):
            if view.strides[i] != view.strides[j] * view.shape[j]:
                raise NoRule("a reshape of what is not contiguous")
        stride = view.strides[old[-1]]
        for i in reversed(new):
            strides[i], stride = stride, stride * shape[i]
    return view.replace(shape=tuple(shape), strides=tuple(strides))


@rule("slice")
def _slice(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    value, params = _held(values[0]), equation.params
    steps = params["strides"] or (1,) * len(params["start_indices"])
    cuts = [slice(a, b, c) for a, b, c in zip(params["start_indices"], params["limit_indices"], steps, strict=True)]
    shape = equation.outvars[0].aval.shape
    if isinstance(value, Memory):
        offset = value.offset + sum(cut.start * stride for cut, stride in zip(cuts, value.strides, strict=True))
        strides = tuple(stride * cut.step for cut, stride in zip(cuts, value.strides, strict=True))
        return [value.replace(shape=shape, strides=strides, offset=offset)]
    if not isinstance(value, Rows):
        return [value[tuple(cuts)]]
    if value.wide is not None and shape[value.wide] != value.shape[value.wide]:
        value = builder.unpacked(value)
    for i, size in enumerate(shape):
        if size != value.shape[i] and value.tags[i]:
            raise NoRule("a part of the rows")
    whole = [slice(None) if n == 1 else cut for cut, n in zip(cuts, value.regs.shape, strict=True)]
    return [dataclasses.replace(value, regs=value.regs[tuple(whole)], shape=shape)]


@rule("rev")
def _reverse(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    value, axes = _held(values[0]), equation.params["dimensions"]
    if isinstance(value, Memory):
        offset = value.offset + sum((value.shape[i] - 1) * value.strides[i] for i in axes)
        strides = tuple(-stride if i in axes else stride for i, stride in enumerate(value.strides))
        return [value.replace(offset=offset, strides=strides)]
    if not isinstance(value, Rows):
        return [np.flip(value, axes)]
    if any(value.tags[i] for i in axes):
        raise NoRule("rows in reverse")
    if value.wide in axes:
        value = builder.unpacked(value)
    return [dataclasses.replace(value, regs=np.flip(value.regs, axes))]


@rule("concatenate")
def _concatenate(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    axis, shape = equation.params["dimension"], equation.outvars[0].aval.shape
    return [_joined(builder, values, [atom.aval.shape for atom in equation.invars], axis, shape)]


@rule("stack")
def _stack(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    axis, shape = equation.params["axis"], equation.outvars[0].aval.shape
    parts = [
        _with_dimension(builder, value, atom.aval.shape, axis)
        for value, atom in zip(values, equation.invars, strict=True)
    ]
    return [_joined(builder, parts, [part.shape for part in parts], axis, shape)]


def _with_dimension(builder: Builder, value: Any, shape: tuple[int, ...], axis: int) -> Rows:
    rows = builder.unpacked(aligned(builder, [value], shape)[0])
    tags = (*rows.tags[:axis], (), *rows.tags[axis:])
    return Rows(np.expand_dims(rows.regs, axis), rows.dtype, (*shape[:axis], 1, *shape[axis:]), tags)


def _joined(
    builder: Builder, values: list[Any], shapes: list[tuple[int, ...]], axis: int, shape: tuple[int, ...]
) -> Rows:
    if math.prod(n for i, n in enumerate(shape) if n not in builder.space) > 4 * MOST_REGISTERS:
        raise NoRule("long arrays side by side")
    held = [value for value in values if isinstance(value, Rows)]
    parts = []
    for value, sizes_of in zip(values, shapes, strict=True):
        if isinstance(value, Rows):
            parts.append(builder.unpacked(value))
        elif isinstance(value, Memory) and held:
            tags = [next((v.tags[i] for v in held if v.tags[i]), ()) for i in range(len(sizes_of))]
            parts.append(builder.rows(value, sizes_of, tuple(tags)))
        else:
            parts.append(builder.rows(_held(value), sizes_of))
    tags = []
    for i in range(len(shape)):
        distinct = {part.tags[i] for part in parts if part.tags[i]}
        if len(distinct) > 1 or (distinct and i == axis):
            raise NoRule("rows side by side")
        tags.append(distinct.pop() if distinct else ())
    sizes = [max(part.regs.shape[i] for part in parts) for i in range(len(shape))]
    grids = []
    for part, sizes_of in zip(parts, shapes, strict=True):
        full = [sizes_of[axis] if i == axis else sizes[i] for i in range(len(shape))]
        grids.append(np.broadcast_to(part.regs, full))
    return Rows(np.concatenate(grids, axis), parts[0].dtype, shape, tuple(tags))


@rule("unstack")
def _unstack(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    axis, count = equation.params["axis"], equation.invars[0].aval.shape[equation.params["axis"]]
    keep = [i for i in range(len(equation.invars[0].aval.shape)) if i != axis]
    return [_select_dimensions(_cut(builder, values[0], axis, i, 1), keep) for i in range(count)]


@rule("split")
def _split(builder: Builder, equation: Any, values: list[Any]) -> list[Any]:
    starts = np.cumsum([0, *equation.params["sizes"]])[:-1]
    sizes, axis = equation.params["sizes"], equation.params["axis"]
    return [_cut(builder, values[0], axis, int(a), int(n)) for a, n in zip(starts, sizes, strict=True)]


def _cut(builder: Builder, value: Any, axis: int, start: int, size: int) -> Any:
    value = _held(value)
    if isinstance(value, Memory):
        shape = tuple(size if i == axis else n for i, n in enumerate(value.shape))
        return value.replace(shape=shape, offset=value.offset + start * value.strides[axis])
    cuts = tuple(slice(start, start + size) if i == axis else slice(None) for i in range(len(value.shape)))
    if not isinstance(value, Rows):
        return value[cuts]
    if value.tags[axis]:
        raise NoRule("a part of the rows")
    value = builder.unpacked(value) if value.wide == axis else value
    shape = tuple(size if i == axis else n for i, n in enumerate(value.shape))
    regs = value.regs if value.regs.shape[axis] == 1 else value.regs[cuts]
    return dataclasses.replace(value, regs=regs, shape=shape)
