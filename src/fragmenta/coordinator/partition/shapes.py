"""Rules for primitives that rearrange or reduce dimensions, or work along some of them."""

import math
from typing import Any

from fragmenta.coordinator.partition.way import Case, Rule, Way, largest_split, split_everywhere
from fragmenta.graph.layout import PARTIAL, WHOLE, Shape, Split


def elementwise(case: Case) -> Way | None:
    """Elementwise operations. An input of length one in a dimension is broadcast along it."""
    shape = case.result()
    full_inputs = [i for i in range(len(case.layouts)) if (s := case.split(i)) and case.shape(i)[s.dim] == shape[s.dim]]
    if not full_inputs or any(len(case.shape(i)) not in (0, len(shape)) for i in range(len(case.layouts))):
        return None
    layout = case.split(max(full_inputs, key=case.bytes))
    assert layout
    return split_everywhere(case, layout)


def broadcast(case: Case) -> Way | None:
    """Copies along new dimensions."""
    layout, shape = case.split(), case.params["shape"]
    if layout is None:
        return None
    at = int(case.params["broadcast_dimensions"][layout.dim])
    if shape[at] != case.shape()[layout.dim]:
        return None
    moved = layout.moved(at)
    return Way(case.layouts, (moved,), {"shape": case.local(shape, moved)})


def reshape(case: Case) -> Way | None:
    """A reshape keeps the split if one dimension of the result contains all the parts."""
    layout, sizes = case.split(), tuple(case.params["new_sizes"])
    if layout is None or case.params.get("dimensions") is not None:
        return None
    moved = reshaped_split(case.shape(), layout, sizes, case.parts)
    return moved and Way(case.layouts, (moved,), {"new_sizes": case.local(sizes, moved)})


def reshaped_split(shape: Shape, layout: Split, sizes: Shape, parts: int) -> Split | None:
    """The split after a reshape, such that every part keeps its elements; None if no dimension allows it."""
    periods, leading_size = math.prod(shape[: layout.dim]) * layout.outer, 1
    if 0 in sizes:
        return None
    for at, size in enumerate(sizes):
        if periods % leading_size == 0 and size % (periods // leading_size * parts) == 0:
            return Split(at, periods // leading_size)
        leading_size *= size
    return None


def transpose(case: Case) -> Way | None:
    """A permutation of dimensions."""
    layout = case.split()
    if layout is None:
        return None
    return Way(case.layouts, (layout.moved(tuple(case.params["permutation"]).index(layout.dim)),))


def squeeze(case: Case) -> Way | None:
    """Removes dimensions of length one, none of which is the split one."""
    layout = case.split()
    return layout and _without_dims(case, layout, case.params["dimensions"])


def _without_dims(case: Case, layout: Split, dimensions: Any) -> Way | None:
    removed_dims = {d % len(case.shape()) for d in dimensions}
    if layout.dim in removed_dims:
        return None
    moved = layout.moved(layout.dim - sum(d < layout.dim for d in removed_dims))
    return Way(case.layouts, (moved,) * len(case.equation.outvars))


def total(case: Case) -> Way | None:
    """A sum over the split dimension is left as partial sums."""
    layout = case.split()
    if layout and layout.dim in case.params["axes"]:
        return Way(case.layouts, (PARTIAL,))
    return layout and _without_dims(case, layout, case.params["axes"])


def reduction(case: Case) -> Way | None:
    """A reduction over the split dimension reduces each part, then the results."""
    layout = case.split()
    if layout and layout.dim in case.params["axes"]:
        return Way(case.layouts, (WHOLE,), combine=True)
    return layout and _without_dims(case, layout, case.params["axes"])


def choice(case: Case) -> Way | None:
    """Argmax or argmin along other dimensions than the split one."""
    layout = case.split()
    return layout and _without_dims(case, layout, case.params["axes"])


def along(parameter: str) -> Rule:
    """Operations along the dimensions in `parameter`, split along another one."""

    def rule(case: Case) -> Way | None:
        layout, dims = largest_split(case), case.params.get(parameter, -1)
        if layout is None:
            return None
        dims = dims if isinstance(dims, (tuple, list)) else (dims,)
        return None if layout.dim in {d % len(case.shape()) for d in dims} else split_everywhere(case, layout)

    return rule


def leading(trailing_dims: int) -> Rule:
    """Operations on the last `trailing_dims` dimensions of all inputs and outputs, batched over the leading ones."""

    def rule(case: Case) -> Way | None:
        layout = largest_split(case)
        shapes = [case.shape(i) for i in range(len(case.layouts))]
        if layout is None or any(
            len(shape) != len(shapes[0])
            or layout.dim >= len(shape) - trailing_dims
            or shape[layout.dim] != shapes[0][layout.dim]
            for shape in shapes
        ):
            return None
        outputs = [case.result(i) for i in range(len(case.equation.outvars))]
        if any(len(shape) <= layout.dim or shape[layout.dim] != shapes[0][layout.dim] for shape in outputs):
            return None
        return Way((layout,) * len(shapes), (layout,) * len(outputs))

    return rule


def fourier(case: Case) -> Way | None:
    """A Fourier transform of the last dimensions."""
    return leading(len(case.params["fft_lengths"]))(case)


def concatenate(case: Case) -> Way | None:
    """Split along another dimension; along the split one, each replica joins its own parts of all inputs."""
    at = case.params["dimension"]
    splits = [case.split(i) for i in range(len(case.layouts))]
    split_elsewhere = [i for i, split in enumerate(splits) if split and split.dim != at]
    if split_elsewhere:
        layout = splits[max(split_elsewhere, key=case.bytes)]
        assert layout
        return split_everywhere(case, layout)
    inner = {case.shape(i)[at] // (s.outer * case.parts) if s else 0 for i, s in enumerate(splits)}
    if len(inner) > 1 or None in splits:
        return None
    return Way(case.layouts, (Split(at, sum(s.outer for s in splits if s)),))


def slice_(case: Case) -> Way | None:
    """A slice of other dimensions, or of the split one at multiples of its period."""
    layout, params = case.split(), dict(case.params)
    if layout is None:
        return None
    d, size = layout.dim, case.shape()[layout.dim]
    start, limit, strides = params["start_indices"][d], params["limit_indices"][d], params["strides"]
    if strides and strides[d] != 1:
        return None
    period = size // layout.outer
    if start % period or limit % period or limit <= start:
        return None
    starts, limits = list(params["start_indices"]), list(params["limit_indices"])
    starts[d], limits[d] = start // case.parts, limit // case.parts
    moved = Split(d, (limit - start) // period)
    return Way(case.layouts, (moved,), {"start_indices": tuple(starts), "limit_indices": tuple(limits)})


def divide(case: Case) -> Way | None:
    """`split` along another dimension, or along the split one at multiples of its period."""
    layout = case.split()
    if layout is None:
        return None
    sizes, at = case.params["sizes"], case.params["axis"]
    if layout.dim != at:
        return Way(case.layouts, (layout,) * len(sizes))
    period = case.shape()[at] // layout.outer
    if any(size % period or not size for size in sizes):
        return None
    outputs = tuple(Split(at, size // period) for size in sizes)
    return Way(case.layouts, outputs, {"sizes": tuple(size // case.parts for size in sizes)})


def pad(case: Case) -> Way | None:
    """Padding of other dimensions than the split one."""
    layout = case.split()
    if layout is None or tuple(case.params["padding_config"][layout.dim]) != (0, 0, 0):
        return None
    return Way((layout, WHOLE), (layout,))


def window(case: Case) -> Way | None:
    """A sliding window of length one along the split dimension."""
    layout, params = largest_split(case), case.params
    if layout is None:
        return None
    is_trivial = all(
        tuple(params[name] or (1,) * len(case.shape()))[layout.dim] == 1
        for name in ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
        if name in params
    )
    if not is_trivial or tuple(params["padding"][layout.dim]) != (0, 0):
        return None
    return split_everywhere(case, layout) if case.result()[layout.dim] == case.shape()[layout.dim] else None


def custom_window(case: Case) -> Way | None:
    """A sliding window with a custom operation, whose initial values are scalars."""
    way = window(case)
    return way if way and all(len(case.shape(i)) in (0, len(case.shape())) for i in range(len(case.layouts))) else None


def identity(case: Case) -> Way:
    """Operations that return their inputs."""
    return Way(case.layouts, case.layouts)


def random_bits(case: Case) -> Way | None:
    """Draws from keys: the dimensions of the draws follow those of the keys."""
    layout = case.split()
    return layout and Way(case.layouts, (layout,))


def random_gamma(case: Case) -> Way | None:
    """Draws from keys, each of which serves all entries in its trailing dimensions."""
    layout = largest_split(case)
    if layout is None or layout.dim >= len(case.shape(0)):
        return None
    return Way((layout,) * len(case.layouts), (layout,))


def key_data(case: Case) -> Way | None:
    """Keys to or from their raw data, whose last dimension is within a key."""
    layout = case.split()
    return (
        Way(case.layouts, (layout,)) if layout and layout.dim < max(len(case.shape()), len(case.result())) - 1 else None
    )


def bitcast(case: Case) -> Way | None:
    """The bits of each entry as another dtype; entries of a smaller one get a new last dimension."""
    layout, before, after = case.split(), case.shape(), case.result()
    if layout is None or before[: layout.dim + 1] != after[: layout.dim + 1]:
        return None
    return Way(case.layouts, (layout,))


def stack(case: Case) -> Way | None:
    """Stacks arrays along a new dimension."""
    layout = largest_split(case)
    if layout is None:
        return None
    moved = layout.moved(layout.dim + (layout.dim >= case.params["axis"]))
    return Way((layout,) * len(case.layouts), (moved,))


def unstack(case: Case) -> Way | None:
    """The slices along a dimension."""
    layout = case.split()
    return layout and _without_dims(case, layout, (case.params["axis"],))


def tile(case: Case) -> Way | None:
    """Repeats an array; along the split dimension, `outer` grows by the number of copies."""
    layout, times = case.split(), case.params["reps"]
    if layout is None:
        return None
    return Way(case.layouts, (Split(layout.dim, layout.outer * times[layout.dim]),))


def custom_reduction(case: Case) -> Way | None:
    """A reduction with a custom operation, over other dimensions than the split one."""
    layout, arrays = largest_split(case), len(case.layouts) // 2
    if layout is None or layout.dim in case.params["dimensions"]:
        return None
    moved = layout.moved(layout.dim - sum(d < layout.dim for d in case.params["dimensions"]))
    return Way((*(layout,) * arrays, *(WHOLE,) * arrays), (moved,) * len(case.equation.outvars))
