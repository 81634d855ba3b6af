"""Programs in which replicas in different processes meet: XLA's own collectives over a mesh of one device of each."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Shape = jax.ShapeDtypeStruct


def compile_meeting(
    function: Callable,
    members: Sequence[Any],
    axis: str,
    inputs: Sequence[tuple[Shape, int | None]],
    outputs: Sequence[int | None],
    donated: tuple[int, ...],
) -> Callable:
    """A function of one replica, compiled for all `members`, each of which calls it with arrays of its own.

    `inputs` has each argument as a replica holds it, and the dimension along which replicas hold parts; `outputs` that
    of each result. Every member must call it as often as the others.
    """
    mesh = Mesh(np.array(members), (axis,))

    def spec(at: int | None) -> PartitionSpec:
        return PartitionSpec() if at is None else PartitionSpec(*[None] * at, axis)

    def whole(held: Shape, at: int | None) -> Shape:
        shape = list(held.shape)
        if at is not None:
            shape[at] *= len(members)
        return Shape(tuple(shape), held.dtype, sharding=NamedSharding(mesh, spec(at)))

    arguments = [whole(held, at) for held, at in inputs]
    specs = tuple(spec(at) for _, at in inputs), tuple(spec(at) for at in outputs)
    placed = tuple(NamedSharding(mesh, spec(at)) for at in outputs)
    everywhere = jax.shard_map(function, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    compiled = jax.jit(everywhere, donate_argnums=donated, out_shardings=placed).lower(*arguments).compile()
    (own,) = (device for device in members if device.process_index == jax.process_index())

    def call(*arrays: Any) -> list[Any]:
        here = (array if isinstance(array, jax.Array) else jax.device_put(array, own) for array in arrays)
        found = compiled(
            *(
                jax.make_array_from_single_device_arrays(shape.shape, shape.sharding, [array])
                for shape, array in zip(arguments, here, strict=True)
            )
        )
        return [result.addressable_data(0) for result in found]

    return call
