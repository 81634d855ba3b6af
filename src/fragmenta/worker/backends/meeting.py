"""Programs in which replicas in different processes meet: XLA's own collectives over a mesh of one device of each."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fragmenta.graph.layout import WHOLE, Layout

Shape = jax.ShapeDtypeStruct


def compile_meeting(
    function: Callable,
    members: Sequence[Any],
    axis: str,
    inputs: Sequence[tuple[Shape, Layout]],
    outputs: Sequence[Layout],
    donated: tuple[int, ...],
) -> Callable:
    """A function of one replica, compiled for all `members`, each of which calls it with arrays of its own.

    `inputs` has each argument as a replica holds it, and how all of them do; `outputs` the latter for each result.
    Every member must call it as often as the others.
    """
    mesh = Mesh(np.array(members), (axis,))
    (own,) = (device for device in members if device.process_index == jax.process_index())

    def spec(layout: Layout) -> PartitionSpec:
        return PartitionSpec() if layout == WHOLE else PartitionSpec(axis)

    # What replicas do not hold alike goes in as one array, part upon part, whichever dimension it is split along.
    def whole(held: Shape, layout: Layout) -> Shape:
        first, *rest = held.shape or (1,)
        shape = held.shape if layout == WHOLE else (len(members) * first, *rest)
        return Shape(shape, held.dtype, sharding=NamedSharding(mesh, spec(layout)))

    def of_one(*arrays: Any) -> tuple[Any, ...]:
        results = function(*(x.reshape(held.shape) for x, (held, _) in zip(arrays, inputs, strict=True)))
        scalars.extend(i for i, x in enumerate(results) if not x.shape and outputs[i] != WHOLE)
        return tuple(x[None] if i in scalars else x for i, x in enumerate(results))

    scalars: list[int] = []
    arguments = [whole(held, layout) for held, layout in inputs]
    specs = tuple(spec(layout) for _, layout in inputs), tuple(map(spec, outputs))
    placed = tuple(NamedSharding(mesh, spec(layout)) for layout in outputs)
    everywhere = jax.shard_map(of_one, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    compiled = jax.jit(everywhere, donate_argnums=donated, out_shardings=placed).lower(*arguments).compile()

    def call(*arrays: Any) -> list[Any]:
        here = (array if isinstance(array, jax.Array) else jax.device_put(array, own) for array in arrays)
        rows = (x if x.shape or s == WHOLE else x[None] for x, (_, s) in zip(here, inputs, strict=True))
        found = compiled(
            *(
                jax.make_array_from_single_device_arrays(shape.shape, shape.sharding, [array])
                for shape, array in zip(arguments, rows, strict=True)
            )
        )
        results = [result.addressable_data(0) for result in found]
        return [x[0] if i in scalars else x for i, x in enumerate(results)]

    return call
