"""Turns interfaces into send and receive steps; where possible, parts are cut and joined inside segments."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from fragmenta.coordinator.partition.parts import folded_shape, join_parts, part, parts_of, sum_parts
from fragmenta.graph import Interface, Operator, Program, Value
from fragmenta.graph.layout import Layout, Split, local_shape
from fragmenta.worker.steps import REPLICA, Item, Key, Operation, Put, Take


class Crossings:
    """Makes the steps that send and receive the interfaces of one program; new values go into `shapes`."""

    def __init__(self, program: Program, replicas: dict[str, int], shapes: dict[Key, Value]) -> None:
        self.program, self.replicas, self.shapes = program, replicas, shapes

    def send(self, interface: Interface, alias: dict[int, Key]) -> list[Item]:
        """Send a value whole, or send each replica of the consumer its part."""
        key = alias.get(interface.value.id, interface.value.id)
        count, target = self.replicas[interface.consumer], interface.consumer_layout
        cuts = interface.operator == Operator.SCATTER or (
            interface.operator == Operator.ALL_TO_ALL and not _same_dimension(interface)
        )
        split = functools.partial(parts_of, split=target, parts=count) if cuts and isinstance(target, Split) else None
        if self.program.together and self.program.replicas == 1:  # a segment sees one replica's part only
            local_layout = self.program.layout(interface.value)
            whole = functools.partial(_unfolded, shape=interface.value.shape) if _is_folded(local_layout) else None
            return [Put(interface, (key,), _then(whole, split))]
        if split is None:
            return [Put(interface, (key,))]
        parts: tuple[Key, ...] = tuple((interface.value.id, i) for i in range(count))
        self._remember_parts(parts, self._local(interface.value), target, count)
        return [Operation((key,), parts, split), Put(interface, parts)]

    def recv(self, interface: Interface) -> list[Item]:
        """Receive a value, or receive the parts from all replicas of the producer and concatenate or sum them."""
        value, source, target = self._local(interface.value), interface.producer_layout, interface.consumer_layout
        self.shapes[value.id] = value
        joins = Operator.GATHER, Operator.ALL_TO_ALL, Operator.REDUCE
        one_program = self.program.together and self.program.replicas == 1
        local_layout = self.program.layout(interface.value)
        fold = None
        if isinstance(local_layout, Split) and local_layout.outer > 1 and one_program:
            fold = functools.partial(_folded, split=local_layout)
        if interface.operator not in joins or interface.delivery.kind == "any":
            return [Take(interface, (value.id,), fold and (lambda x: [fold(x)]))]
        count = self.replicas[interface.producer]

        def join(*arrays: jax.Array) -> list[jax.Array]:
            if interface.operator == Operator.REDUCE:
                return [sum_parts(arrays)]
            assert isinstance(source, Split)
            whole = join_parts(arrays, source)
            return [fold(whole) if fold else whole]

        if one_program:
            return [Take(interface, (value.id,), join)]
        parts: tuple[Key, ...] = tuple((value.id, i) for i in range(count))
        sent = interface.value if _same_dimension(interface) else value
        self._remember_parts(parts, sent, source, count)
        if interface.operator == Operator.ALL_TO_ALL and isinstance(target, Split) and _same_dimension(interface):
            part_count = self.program.parts

            def cut(index: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
                return [part(join(*arrays)[0], target, part_count, index)]

            return [Take(interface, parts), Operation((REPLICA, *parts), (value.id,), cut)]
        return [Take(interface, parts), Operation(parts, (value.id,), join)]

    def _local(self, value: Value) -> Value:
        """The same value as one replica of this fragment holds it."""
        shape = local_shape(value.shape, self.program.layout(value), self.program.parts)
        return dataclasses.replace(value, shape=shape)

    def _remember_parts(self, parts: Sequence[Key], value: Value, layout: Layout, count: int) -> None:
        shape = local_shape(value.shape, layout, count)
        self.shapes.update({key: dataclasses.replace(value, shape=shape) for key in parts})


def _same_dimension(interface: Interface) -> bool:
    """Whether producer and consumer split the same dimension, but differently: then parts are sent unchanged."""
    source, target = interface.producer_layout, interface.consumer_layout
    return isinstance(source, Split) and isinstance(target, Split) and source.dim == target.dim


def _is_folded(layout: Layout) -> bool:
    return isinstance(layout, Split) and layout.outer > 1


def _unfolded(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Reshape an array that merged replicas hold to its shape in the whole program; keys have one more dimension."""
    return x.reshape(*shape, *x.shape[len(shape) + 1 :])


def _folded(x: jax.Array, split: Split) -> jax.Array:
    return x.reshape(folded_shape(x.shape, split)[0])


def _then(first: Any, then: Any) -> Any:
    """Compose two functions, either of which may be None; the first alone returns a list of one."""
    if first is None or then is None:
        return then if first is None else lambda x: [first(x)]
    return lambda x: then(first(x))
