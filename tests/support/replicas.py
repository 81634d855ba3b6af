"""Runs a function on replicas on one device, without a plan, to test the compiler's rules."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.coordinator.partition.analyse import Partitioner
from fragmenta.coordinator.partition.block import PartitionedJaxpr
from fragmenta.coordinator.partition.parts import Replica, convert, part
from fragmenta.graph.layout import WHOLE, Split


def partitioned(
    function: Callable, arguments: Sequence[Any], dims: Sequence[int | None], replicas: int
) -> PartitionedJaxpr:
    """The compiled block for replicas that hold the arguments split along `dims`."""
    closed = jax.make_jaxpr(function)(*arguments)
    layouts = []
    for argument, dim in zip(arguments, dims, strict=True):
        for leaf in jax.tree.leaves(argument):
            fits = dim is not None and dim < leaf.ndim and leaf.shape[dim] % replicas == 0
            layouts.append(Split(dim) if fits and replicas > 1 else WHOLE)
    return Partitioner(replicas).block(closed, tuple(layouts))


def on_replicas(function: Callable, arguments: Sequence[Any], dims: Sequence[int | None], replicas: int) -> list[Any]:
    """The whole leaves of `function(*arguments)`, computed by replicas that hold each argument split along its entry in
    `dims` (None: every replica holds the whole argument)."""
    block = partitioned(function, arguments, dims, replicas)

    def one(index: jax.Array, *leaves: Any) -> list[Any]:
        replica = Replica(replicas, index, "replicas")
        pairs = list(zip(leaves, block.inputs, strict=True))
        values = [part(x, s, replicas, index) if isinstance(s, Split) else x for x, s in pairs]
        whole = {i: convert(values[i], block.inputs[i], WHOLE, replica) for i in block.whole}
        outputs = block.run(replica, values, whole)
        return [convert(x, now, WHOLE, replica) for x, now in zip(outputs, block.outputs, strict=True)]

    @jax.jit
    def run(*leaves: Any) -> list[Any]:
        rows = jax.vmap(one, (0, *[None] * len(leaves)), axis_name="replicas")(jnp.arange(replicas), *leaves)
        return jax.tree.map(lambda x: x[-1], rows)

    return run(*jax.tree.leaves(tuple(arguments)))
