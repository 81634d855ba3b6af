"""Rules for primitives that read or write entries by index."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from fragmenta.coordinator.partition.parts import Replica, part
from fragmenta.coordinator.partition.way import Case, Way
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split


def dynamic_slice(case: Case) -> Way | None:
    """A slice that keeps the split dimension in full."""
    layout = case.split()
    sizes = tuple(case.params["slice_sizes"])
    if layout is None or sizes[layout.dim] != case.shape()[layout.dim]:
        return None
    starts = (WHOLE,) * (len(case.layouts) - 1)
    return Way((layout, *starts), (layout,), {"slice_sizes": case.local(sizes, layout)})


def dynamic_update_slice(case: Case) -> Way | None:
    """An update that covers the split dimension in full."""
    layout = case.split(0) or case.split(1)
    if layout is None or case.shape(0)[layout.dim] != case.shape(1)[layout.dim]:
        return None
    starts = (WHOLE,) * (len(case.layouts) - 2)
    return Way((layout, layout, *starts), (layout,))


def gather(case: Case) -> Way | None:
    """Split along a dimension that each index reads in full, along the indices, or along both if every index points
    into its replica's own part."""
    numbers, sizes = case.params["dimension_numbers"], tuple(case.params["slice_sizes"])
    operand, indices = case.split(0), case.split(1)
    collapsed = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window_dims = [d for d in range(len(case.shape(0))) if d not in collapsed]
    batch_dims = [d for d in range(len(case.result())) if d not in numbers.offset_dims]

    def along_batch(layout: Split, operand_layout: Layout) -> Way:
        return Way((operand_layout, layout), (layout.moved(batch_dims[layout.dim]),))

    is_window_dim = operand and operand.dim in window_dims and operand.dim not in numbers.start_index_map
    if operand and is_window_dim and sizes[operand.dim] == case.shape(0)[operand.dim]:
        moved = operand.moved(numbers.offset_dims[window_dims.index(operand.dim)])
        return Way((operand, WHOLE), (moved,), {"slice_sizes": case.local(sizes, operand)})
    paired = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    if operand and operand.dim in paired:
        return along_batch(operand.moved(paired[operand.dim]), operand)
    if indices and indices.dim in paired.values():
        operand_dim = next(d for d, indices_dim in paired.items() if indices_dim == indices.dim)
        return along_batch(indices, indices.moved(operand_dim))
    if operand and operand.dim in numbers.start_index_map and operand.dim in numbers.collapsed_slice_dims:
        column = numbers.start_index_map.index(operand.dim)
        for layout in _index_layouts(case, indices, operand):
            local = rows_in_part(case, 1, column, layout, operand)
            if local is not None:
                way = along_batch(layout, operand)
                return Way(way.inputs, way.outputs, run=_with_rows(case, column, local, layout))
    if indices and indices.dim < len(case.shape(1)) - 1:
        return along_batch(indices, WHOLE)
    return None


def scatter(case: Case) -> Way | None:
    """Like `gather`, for writes."""
    return next(_scatters(case), None)


def scatter_add(case: Case) -> Way | None:
    """Like `scatter`; otherwise, each replica's additions to a whole array are its partial sum of the result."""
    way = scatter(case)
    if way is not None:
        return way
    numbers = case.params["dimension_numbers"]
    rows = [d for d in range(len(case.shape(2))) if d not in numbers.update_window_dims]
    indices, updates = case.split(1), case.split(2)
    if updates and updates.dim in rows:
        indices = updates.moved(rows.index(updates.dim))
    elif indices and indices.dim < len(rows):
        updates = indices.moved(rows[indices.dim])
    else:
        return None
    start = case.layouts[0] if case.is_zero(0) else PARTIAL
    return Way((start, indices, updates), (PARTIAL,))


def _scatters(case: Case) -> Iterator[Way]:
    numbers = case.params["dimension_numbers"]
    operand, indices, updates = case.split(0), case.split(1), case.split(2)
    window = [
        d
        for d in range(len(case.shape(0)))
        if d not in numbers.inserted_window_dims and d not in numbers.operand_batching_dims
    ]
    rows = [d for d in range(len(case.shape(2))) if d not in numbers.update_window_dims]
    target = operand
    if target is None and updates and updates.dim in numbers.update_window_dims:
        target = updates.moved(window[numbers.update_window_dims.index(updates.dim)])
    if target and target.dim in window and target.dim not in numbers.scatter_dims_to_operand_dims:
        across = numbers.update_window_dims[window.index(target.dim)]
        if case.shape(2)[across] == case.shape(0)[target.dim] and case.fits(case.shape(0), target):
            yield Way((target, WHOLE, target.moved(across)), (target,))
    for operand_dim, indices_dim in zip(
        numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
    ):
        split = next(
            (
                s
                for s, d in ((operand, operand_dim), (indices, indices_dim), (updates, rows[indices_dim]))
                if s and s.dim == d
            ),
            None,
        )
        if split:
            yield Way(
                (split.moved(operand_dim), split.moved(indices_dim), split.moved(rows[indices_dim])),
                (split.moved(operand_dim),),
            )
    if operand and operand.dim in numbers.scatter_dims_to_operand_dims and operand.dim in numbers.inserted_window_dims:
        column = numbers.scatter_dims_to_operand_dims.index(operand.dim)
        for layout in _index_layouts(case, indices or _rows_split(updates, rows), operand):
            local = rows_in_part(case, 1, column, layout, operand)
            if local is not None:
                inputs = operand, layout, layout.moved(rows[layout.dim])
                yield Way(inputs, (operand,), run=_with_rows(case, column, local, layout))


def _rows_split(updates: Split | None, rows: list[int]) -> Split | None:
    return updates.moved(rows.index(updates.dim)) if updates and updates.dim in rows else None


def _index_layouts(case: Case, split: Split | None, operand: Split) -> list[Split]:
    """Candidate splits of the indices such that each could point into its replica's own part."""
    shape = case.shape(1)
    candidates = [Split(d, outer) for d in range(len(shape) - 1) for outer in {1, operand.outer}]
    return [split] if split else [layout for layout in candidates if case.fits(shape, layout)]


def rows_in_part(case: Case, i: int, column: int, layout: Split, operand: Split) -> np.ndarray | None:
    """The position of each index within its replica's part of the operand, or None unless all are known to be in it."""
    indices = case.columns[i][column] if column < len(case.columns[i]) else None
    shape = case.shape(i)
    if indices is None or layout.dim >= len(shape) - 1:
        return None
    size = case.shape(0)[operand.dim]
    inner = size // (operand.outer * case.parts)
    if indices.min(initial=0) < 0 or indices.max(initial=0) >= size:
        return None
    length = shape[layout.dim]
    part_numbers = np.arange(length) // (length // (layout.outer * case.parts)) % case.parts
    owner = part_numbers.reshape(-1, *[1] * (indices.ndim - layout.dim - 1))
    if not np.array_equal(indices // inner % case.parts, np.broadcast_to(owner, indices.shape)):
        return None
    return indices // (inner * case.parts) * inner + indices % inner


def _with_rows(case: Case, column: int, local: np.ndarray, layout: Split) -> Any:
    """The equation, with one column of its indices replaced by positions within the replica's part."""
    equation = case.equation

    def run(replica: Replica, inputs: list[Any]) -> list[Any]:
        rows = part(jnp.asarray(local, inputs[1].dtype), layout, replica.parts, replica.index)
        indices = inputs[1].at[..., column].set(rows)
        return [equation.primitive.bind(inputs[0], indices, *inputs[2:], **equation.params)]

    return run
