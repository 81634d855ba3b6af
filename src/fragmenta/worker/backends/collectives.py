"""Compiles programs whose replicas exchange values across processes: XLA collectives, one device per process."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fragmenta.graph.layout import WHOLE, Layout

Shape = jax.ShapeDtypeStruct


def compile_with_collectives(
    function: Callable,
    members: Sequence[Any],
    axis: str,
    inputs: Sequence[tuple[Shape, Layout]],
    outputs: Sequence[Layout],
    donated: tuple[int, ...],
) -> Callable:
    """A per-replica function compiled for all `members` (devices); each process calls it with its local arrays.

    `inputs` has the local shape and the layout of each argument, `outputs` the layout of each result. All members must
    call it equally often, or the collectives hang.
    """
    mesh = Mesh(np.array(members), (axis,))
    (local_device,) = (device for device in members if device.process_index == jax.process_index())

    def spec(layout: Layout) -> PartitionSpec:
        return PartitionSpec() if layout == WHOLE else PartitionSpec(axis)

    # Parts that differ across replicas are stacked along dimension 0, whichever dimension the value is split along.
    def whole(local: Shape, layout: Layout) -> Shape:
        first, *rest = local.shape or (1,)
        shape = local.shape if layout == WHOLE else (len(members) * first, *rest)
        return Shape(shape, local.dtype, sharding=NamedSharding(mesh, spec(layout)))

    def per_replica(*arrays: Any) -> tuple[Any, ...]:
        results = function(*(x.reshape(local.shape) for x, (local, _) in zip(arrays, inputs, strict=True)))
        scalars.extend(i for i, x in enumerate(results) if not x.shape and outputs[i] != WHOLE)
        return tuple(x[None] if i in scalars else x for i, x in enumerate(results))

    scalars: list[int] = []
    arguments = [whole(local, layout) for local, layout in inputs]
    specs = tuple(spec(layout) for _, layout in inputs), tuple(map(spec, outputs))
    shardings = tuple(NamedSharding(mesh, spec(layout)) for layout in outputs)
    sharded = jax.shard_map(per_replica, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    compiled = jax.jit(sharded, donate_argnums=donated, out_shardings=shardings).lower(*arguments).compile()

    def call(*arrays: Any) -> list[Any]:
        here = (array if isinstance(array, jax.Array) else jax.device_put(array, local_device) for array in arrays)
        rows = (x if x.shape or s == WHOLE else x[None] for x, (_, s) in zip(here, inputs, strict=True))
        global_results = compiled(
            *(
                jax.make_array_from_single_device_arrays(shape.shape, shape.sharding, [array])
                for shape, array in zip(arguments, rows, strict=True)
            )
        )
        results = [result.addressable_data(0) for result in global_results]
        return [x[0] if i in scalars else x for i, x in enumerate(results)]

    return call
