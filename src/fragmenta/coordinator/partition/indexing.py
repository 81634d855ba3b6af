"""Rules for what takes or puts entries by index."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from fragmenta.coordinator.partition.parts import Replica, part
from fragmenta.coordinator.partition.way import Case, Way
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split


def dynamic_slice(case: Case) -> Way | None:
    """Of the dimension with the parts, all."""
    layout = case.split()
    sizes = tuple(case.params["slice_sizes"])
    if layout is None or sizes[layout.dim] != case.shape()[layout.dim]:
        return None
    starts = (WHOLE,) * (len(case.layouts) - 1)
    return Way((layout, *starts), (layout,), {"slice_sizes": case.local(sizes, layout)})


def dynamic_update_slice(case: Case) -> Way | None:
    """In the dimension with the parts, everywhere."""
    layout = case.split(0) or case.split(1)
    if layout is None or case.shape(0)[layout.dim] != case.shape(1)[layout.dim]:
        return None
    starts = (WHOLE,) * (len(case.layouts) - 2)
    return Way((layout, layout, *starts), (layout,))


def gather(case: Case) -> Way | None:
    """Parts of what each index takes, of the indices, or of both where each index takes from its own part."""
    numbers, sizes = case.params["dimension_numbers"], tuple(case.params["slice_sizes"])
    operand, indices = case.split(0), case.split(1)
    collapsed = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    taken = [d for d in range(len(case.shape(0))) if d not in collapsed]
    batch = [d for d in range(len(case.result())) if d not in numbers.offset_dims]

    def along_batch(layout: Split, takes_from: Layout) -> Way:
        return Way((takes_from, layout), (layout.moved(batch[layout.dim]),))

    free = operand and operand.dim in taken and operand.dim not in numbers.start_index_map
    if operand and free and sizes[operand.dim] == case.shape(0)[operand.dim]:
        moved = operand.moved(numbers.offset_dims[taken.index(operand.dim)])
        return Way((operand, WHOLE), (moved,), {"slice_sizes": case.local(sizes, operand)})
    paired = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    if operand and operand.dim in paired:
        return along_batch(operand.moved(paired[operand.dim]), operand)
    if indices and indices.dim in paired.values():
        own = next(d for d, other in paired.items() if other == indices.dim)
        return along_batch(indices, indices.moved(own))
    if operand and operand.dim in numbers.start_index_map and operand.dim in numbers.collapsed_slice_dims:
        column = numbers.start_index_map.index(operand.dim)
        for layout in _index_layouts(case, indices, operand):
            local = own_rows(case, 1, column, layout, operand)
            if local is not None:
                way = along_batch(layout, operand)
                return Way(way.inputs, way.outputs, run=_with_rows(case, column, local, layout))
    if indices and indices.dim < len(case.shape(1)) - 1:
        return along_batch(indices, WHOLE)
    return None


def scatter(case: Case) -> Way | None:
    """As `gather`, the other way round."""
    return next(_scatters(case), None)


def scatter_add(case: Case) -> Way | None:
    """Besides, what each replica adds to a whole array is its summand of the result."""
    found = scatter(case)
    if found is not None:
        return found
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
    wanted = operand
    if wanted is None and updates and updates.dim in numbers.update_window_dims:
        wanted = updates.moved(window[numbers.update_window_dims.index(updates.dim)])
    if wanted and wanted.dim in window and wanted.dim not in numbers.scatter_dims_to_operand_dims:
        across = numbers.update_window_dims[window.index(wanted.dim)]
        if case.shape(2)[across] == case.shape(0)[wanted.dim] and case.fits(case.shape(0), wanted):
            yield Way((wanted, WHOLE, wanted.moved(across)), (wanted,))
    for own, other in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        held = next(
            (s for s, d in ((operand, own), (indices, other), (updates, rows[other])) if s and s.dim == d), None
        )
        if held:
            yield Way((held.moved(own), held.moved(other), held.moved(rows[other])), (held.moved(own),))
    if operand and operand.dim in numbers.scatter_dims_to_operand_dims and operand.dim in numbers.inserted_window_dims:
        column = numbers.scatter_dims_to_operand_dims.index(operand.dim)
        for layout in _index_layouts(case, indices or _rows_split(updates, rows), operand):
            local = own_rows(case, 1, column, layout, operand)
            if local is not None:
                inputs = operand, layout, layout.moved(rows[layout.dim])
                yield Way(inputs, (operand,), run=_with_rows(case, column, local, layout))


def _rows_split(updates: Split | None, rows: list[int]) -> Split | None:
    return updates.moved(rows.index(updates.dim)) if updates and updates.dim in rows else None


def _index_layouts(case: Case, held: Split | None, operand: Split) -> list[Split]:
    """How the indices might be split so that each takes from its own part."""
    shape = case.shape(1)
    every = [Split(d, outer) for d in range(len(shape) - 1) for outer in {1, operand.outer}]
    return [held] if held else [layout for layout in every if case.fits(shape, layout)]


def own_rows(case: Case, i: int, column: int, layout: Split, operand: Split) -> np.ndarray | None:
    """Where in a replica's part of the operand each index points, if it is known that it points there."""
    known = case.columns[i][column] if column < len(case.columns[i]) else None
    shape = case.shape(i)
    if known is None or layout.dim >= len(shape) - 1:
        return None
    size = case.shape(0)[operand.dim]
    inner = size // (operand.outer * case.parts)
    if known.min(initial=0) < 0 or known.max(initial=0) >= size:
        return None
    length = shape[layout.dim]
    place = np.arange(length) // (length // (layout.outer * case.parts)) % case.parts
    owner = place.reshape(-1, *[1] * (known.ndim - layout.dim - 1))
    if not np.array_equal(known // inner % case.parts, np.broadcast_to(owner, known.shape)):
        return None
    return known // (inner * case.parts) * inner + known % inner


def _with_rows(case: Case, column: int, local: np.ndarray, layout: Split) -> Any:
    """The equation with one column of its indices replaced by places within the part."""
    equation = case.equation

    def run(replica: Replica, inputs: list[Any]) -> list[Any]:
        rows = part(jnp.asarray(local, inputs[1].dtype), layout, replica.parts, replica.index)
        indices = inputs[1].at[..., column].set(rows)
        return [equation.primitive.bind(inputs[0], indices, *inputs[2:], **equation.params)]

    return run
