"""Rules for matrix products, convolutions and the fused MLP kernels."""

from collections.abc import Iterator

from fragmenta.coordinator.partition.parts import needs_exchange
from fragmenta.coordinator.partition.way import Case, Way
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout


def dot_general(case: Case) -> Way | None:
    """Split along rows, columns or a batch dimension; contracting a split dimension gives partial sums."""
    ways = list(_dot_ways(case))
    return min(ways, key=lambda way: _exchanged_bytes(case, way.inputs), default=None)


def _dot_ways(case: Case) -> Iterator[Way]:
    contracting, batch = case.params["dimension_numbers"]
    for this in (0, 1):
        layout, other = case.split(this), 1 - this
        if layout is None:
            continue
        inputs: list[Layout] = [WHOLE, WHOLE]
        inputs[this] = layout
        output: Layout
        if layout.dim in contracting[this]:
            inputs[other] = layout.moved(contracting[other][tuple(contracting[this]).index(layout.dim)])
            output = PARTIAL
        elif layout.dim in batch[this]:
            place = tuple(batch[this]).index(layout.dim)
            inputs[other] = layout.moved(batch[other][place])
            output = layout.moved(place)
        else:
            free_dims = [
                [d for d in range(len(case.shape(i))) if d not in contracting[i] and d not in batch[i]] for i in (0, 1)
            ]
            first_free = len(batch[0]) + (len(free_dims[0]) if this else 0)
            output = layout.moved(first_free + free_dims[this].index(layout.dim))
        yield Way(tuple(inputs), (output,))


def _exchanged_bytes(case: Case, inputs: tuple[Layout, ...]) -> int:
    """Bytes of the inputs that must be exchanged to get these layouts."""
    pairs = zip(case.layouts, inputs, strict=True)
    return sum(case.bytes(i) for i, (now, target) in enumerate(pairs) if needs_exchange(now, target))


def convolution(case: Case) -> Way | None:
    """Split along the batch of images or the output channels; contracting a split dimension gives partial sums, as in
    the gradients of filters, which are sums over images."""
    numbers, params = case.params["dimension_numbers"], case.params
    images, filters = case.split(0), case.split(1)
    if params["batch_group_count"] != 1:
        return None
    if images and images.dim == numbers.lhs_spec[0]:
        return Way((images, WHOLE), (images.moved(numbers.out_spec[0]),))
    if params["feature_group_count"] != 1:
        return None
    if filters and filters.dim == numbers.rhs_spec[0]:
        return Way((WHOLE, filters), (filters.moved(numbers.out_spec[1]),))
    channels = next(
        (s for s, d in ((images, numbers.lhs_spec[1]), (filters, numbers.rhs_spec[1])) if s and s.dim == d), None
    )
    if channels is None:
        return None
    return Way((channels.moved(numbers.lhs_spec[1]), channels.moved(numbers.rhs_spec[1])), (PARTIAL,))


def network(case: Case) -> Way | None:
    """A network that is a single operation: split along the rows of the batch."""
    rows = case.split(0)
    if rows is None or rows.dim:
        return None
    return Way((rows, *[WHOLE] * (len(case.layouts) - 1)), (rows,))


def network_gradient(case: Case) -> Way | None:
    """The gradient of `network`: split along rows for the inputs, partial sums for the weights."""
    rows = case.split(0) or case.split(1)
    if rows is None or rows.dim:
        return None
    weights = len(case.layouts) - 2
    outputs = [rows] * case.params["with_dx"] + [PARTIAL] * weights
    return Way((rows, rows, *[WHOLE] * weights), tuple(outputs))
