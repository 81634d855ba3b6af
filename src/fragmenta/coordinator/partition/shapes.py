"""Rules for what moves or leaves out dimensions, and for what works along one of them."""

import math
from typing import Any

from fragmenta.coordinator.partition.way import Case, Rule, Way, largest_split, same_for_all
from fragmenta.graph.layout import PARTIAL, WHOLE, Shape, Split


def elementwise(case: Case) -> Way | None:
    """The same for every element. An input of length one in a dimension serves all of it."""
    shape = case.result()
    full = [i for i in range(len(case.layouts)) if (s := case.split(i)) and case.shape(i)[s.dim] == shape[s.dim]]
    if not full or any(len(case.shape(i)) not in (0, len(shape)) for i in range(len(case.layouts))):
        return None
    layout = case.split(max(full, key=case.bytes))
    assert layout
    return same_for_all(case, layout)


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
    """Parts stay parts if a dimension of the result has all of them, wherever in it they are."""
    layout, sizes = case.split(), tuple(case.params["new_sizes"])
    if layout is None or case.params.get("dimensions") is not None:
        return None
    moved = reshaped(case.shape(), layout, sizes, case.parts)
    return moved and Way(case.layouts, (moved,), {"new_sizes": case.local(sizes, moved)})


def reshaped(shape: Shape, layout: Split, sizes: Shape, parts: int) -> Split | None:
    """Where the parts are after a reshape: as many elements precede each part as before."""
    before, passed = math.prod(shape[: layout.dim]) * layout.outer, 1
    if 0 in sizes:
        return None
    for at, size in enumerate(sizes):
        if before % passed == 0 and size % (before // passed * parts) == 0:
            return Split(at, before // passed)
        passed *= size
    return None


def transpose(case: Case) -> Way | None:
    """Dimensions in another order."""
    layout = case.split()
    if layout is None:
        return None
    return Way(case.layouts, (layout.moved(tuple(case.params["permutation"]).index(layout.dim)),))


def squeeze(case: Case) -> Way | None:
    """Without dimensions of length one, of which the parts are none."""
    layout = case.split()
    return layout and _without(case, layout, case.params["dimensions"])


def _without(case: Case, layout: Split, dimensions: Any) -> Way | None:
    gone = {d % len(case.shape()) for d in dimensions}
    if layout.dim in gone:
        return None
    moved = layout.moved(layout.dim - sum(d < layout.dim for d in gone))
    return Way(case.layouts, (moved,) * len(case.equation.outvars))


def total(case: Case) -> Way | None:
    """A sum over all parts is kept as one summand per replica."""
    layout = case.split()
    if layout and layout.dim in case.params["axes"]:
        return Way(case.layouts, (PARTIAL,))
    return layout and _without(case, layout, case.params["axes"])


def reduction(case: Case) -> Way | None:
    """A reduction over all parts is done on each of them, then on the results."""
    layout = case.split()
    if layout and layout.dim in case.params["axes"]:
        return Way(case.layouts, (WHOLE,), combine=True)
    return layout and _without(case, layout, case.params["axes"])


def choice(case: Case) -> Way | None:
    """The place of the largest or smallest entry, but not along the parts."""
    layout = case.split()
    return layout and _without(case, layout, case.params["axes"])


def along(parameter: str) -> Rule:
    """Something that works along some dimensions, on parts along another one."""

    def rule(case: Case) -> Way | None:
        layout, dims = largest_split(case), case.params.get(parameter, -1)
        if layout is None:
            return None
        dims = dims if isinstance(dims, (tuple, list)) else (dims,)
        return None if layout.dim in {d % len(case.shape()) for d in dims} else same_for_all(case, layout)

    return rule


def leading(kept: int) -> Rule:
    """Something that works on the last `kept` dimensions of every input and output, once for all others."""

    def rule(case: Case) -> Way | None:
        layout = largest_split(case)
        shapes = [case.shape(i) for i in range(len(case.layouts))]
        if layout is None or any(
            len(shape) != len(shapes[0])
            or layout.dim >= len(shape) - kept
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
    """Along the parts, each replica joins its own: those of the first, then those of the second."""
    at = case.params["dimension"]
    splits = [case.split(i) for i in range(len(case.layouts))]
    across = [i for i, split in enumerate(splits) if split and split.dim != at]
    if across:
        layout = splits[max(across, key=case.bytes)]
        assert layout
        return same_for_all(case, layout)
    inner = {case.shape(i)[at] // (s.outer * case.parts) if s else 0 for i, s in enumerate(splits)}
    if len(inner) > 1 or None in splits:
        return None
    return Way(case.layouts, (Split(at, sum(s.outer for s in splits if s)),))


def cut(case: Case) -> Way | None:
    """A slice on parts: of other dimensions, or of whole rounds of parts."""
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
    """`split` into pieces on parts: along another dimension, or into whole rounds of parts."""
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
    """Padding of other dimensions."""
    layout = case.split()
    if layout is None or tuple(case.params["padding_config"][layout.dim]) != (0, 0, 0):
        return None
    return Way((layout, WHOLE), (layout,))


def window(case: Case) -> Way | None:
    """A sliding window that has one place along the parts."""
    layout, params = largest_split(case), case.params
    if layout is None:
        return None
    alone = all(
        tuple(params[name] or (1,) * len(case.shape()))[layout.dim] == 1
        for name in ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
        if name in params
    )
    if not alone or tuple(params["padding"][layout.dim]) != (0, 0):
        return None
    return same_for_all(case, layout) if case.result()[layout.dim] == case.shape()[layout.dim] else None


def window_of(case: Case) -> Way | None:
    """A sliding window with an operation of its own, whose start values are scalars."""
    found = window(case)
    return (
        found if found and all(len(case.shape(i)) in (0, len(case.shape())) for i in range(len(case.layouts))) else None
    )


def passed_on(case: Case) -> Way:
    """Every output is an input."""
    return Way(case.layouts, case.layouts)


def random_bits(case: Case) -> Way | None:
    """Numbers from keys, those of each key behind it."""
    layout = case.split()
    return layout and Way(case.layouts, (layout,))


def random_gamma(case: Case) -> Way | None:
    """Numbers from keys, each of which serves all that is behind it."""
    layout = largest_split(case)
    if layout is None or layout.dim >= len(case.shape(0)):
        return None
    return Way((layout,) * len(case.layouts), (layout,))


def key_data(case: Case) -> Way | None:
    """Keys from numbers, or numbers from keys: the last dimension is within a key."""
    layout = case.split()
    return (
        Way(case.layouts, (layout,)) if layout and layout.dim < max(len(case.shape()), len(case.result())) - 1 else None
    )


def bitcast(case: Case) -> Way | None:
    """The bits of each entry as another type; as several of a smaller one, those in a last dimension."""
    layout, before, after = case.split(), case.shape(), case.result()
    if layout is None or before[: layout.dim + 1] != after[: layout.dim + 1]:
        return None
    return Way(case.layouts, (layout,))


def stack(case: Case) -> Way | None:
    """Side by side in a new dimension."""
    layout = largest_split(case)
    if layout is None:
        return None
    moved = layout.moved(layout.dim + (layout.dim >= case.params["axis"]))
    return Way((layout,) * len(case.layouts), (moved,))


def unstack(case: Case) -> Way | None:
    """The slices of a dimension."""
    layout = case.split()
    return layout and _without(case, layout, (case.params["axis"],))


def tile(case: Case) -> Way | None:
    """Copies side by side; of the parts, copy after copy."""
    layout, times = case.split(), case.params["reps"]
    if layout is None:
        return None
    return Way(case.layouts, (Split(layout.dim, layout.outer * times[layout.dim]),))


def reduction_of(case: Case) -> Way | None:
    """A reduction with an operation of its own, but not over the parts."""
    layout, arrays = largest_split(case), len(case.layouts) // 2
    if layout is None or layout.dim in case.params["dimensions"]:
        return None
    moved = layout.moved(layout.dim - sum(d < layout.dim for d in case.params["dimensions"]))
    return Way((*(layout,) * arrays, *(WHOLE,) * arrays), (moved,) * len(case.equation.outvars))
