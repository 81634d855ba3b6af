"""What a program does to send and to receive: parts are cut and joined inside segments, where it can be."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from fragmenta.coordinator.partition.parts import folded_shape, joined, part, parts_of
from fragmenta.graph import Interface, Operator, Program, Value
from fragmenta.graph.layout import Layout, Split, local_shape
from fragmenta.worker.steps import REPLICA, Item, Key, Operation, Put, Take


class Crossings:
    """Turns what crosses into steps of one program; `shapes` learns what is new."""

    def __init__(self, program: Program, replicas: dict[str, int], shapes: dict[Key, Value]) -> None:
        self.program, self.replicas, self.shapes = program, replicas, shapes

    def send(self, interface: Interface, alias: dict[int, Key]) -> list[Item]:
        """Hand a value over, or to each replica of the consumer its part."""
        key = alias.get(interface.value.id, interface.value.id)
        count, wanted = self.replicas[interface.consumer], interface.wanted
        cuts = interface.operator == Operator.SCATTER or (
            interface.operator == Operator.ALL_TO_ALL and not _same_dimension(interface)
        )
        split = functools.partial(parts_of, split=wanted, parts=count) if cuts and isinstance(wanted, Split) else None
        if self.program.together and self.program.replicas == 1:  # a segment sees one replica's part only
            held = self.program.layout(interface.value)
            whole = functools.partial(_unfolded, shape=interface.value.shape) if _is_folded(held) else None
            return [Put(interface, (key,), _then(whole, split))]
        if split is None:
            return [Put(interface, (key,))]
        parts: tuple[Key, ...] = tuple((interface.value.id, i) for i in range(count))
        self._remember_parts(parts, self._local(interface.value), wanted, count)
        return [Operation((key,), parts, split), Put(interface, parts)]

    def recv(self, interface: Interface) -> list[Item]:
        """Take a value, or the parts of all replicas of the producer, joined or added up."""
        value, held, wanted = self._local(interface.value), interface.held, interface.wanted
        self.shapes[value.id] = value
        joins = Operator.GATHER, Operator.ALL_TO_ALL, Operator.REDUCE
        one_program = self.program.together and self.program.replicas == 1
        mine = self.program.layout(interface.value)
        fold = None
        if isinstance(mine, Split) and mine.outer > 1 and one_program:
            fold = functools.partial(_folded, split=mine)
        if interface.operator not in joins or interface.delivery.kind == "any":
            return [Take(interface, (value.id,), fold and (lambda x: [fold(x)]))]
        count = self.replicas[interface.producer]

        def join(*arrays: jax.Array) -> list[jax.Array]:
            if interface.operator == Operator.REDUCE:
                return [sum(arrays[1:], arrays[0])]
            assert isinstance(held, Split)
            whole = joined(arrays, held)
            return [fold(whole) if fold else whole]

        if one_program:
            return [Take(interface, (value.id,), join)]
        parts: tuple[Key, ...] = tuple((value.id, i) for i in range(count))
        sent = interface.value if _same_dimension(interface) else value
        self._remember_parts(parts, sent, held, count)
        if interface.operator == Operator.ALL_TO_ALL and isinstance(wanted, Split) and _same_dimension(interface):
            own = self.program.parts

            def cut(index: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
                return [part(join(*arrays)[0], wanted, own, index)]

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
    """Whether producer and consumer cut the same dimension, but not alike: then parts cross as they are."""
    held, wanted = interface.held, interface.wanted
    return isinstance(held, Split) and isinstance(wanted, Split) and held.dim == wanted.dim


def _is_folded(layout: Layout) -> bool:
    return isinstance(layout, Split) and layout.outer > 1


def _unfolded(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """An array as replicas that run as one hold it, in the shape of the whole program; keys have a dimension more."""
    return x.reshape(*shape, *x.shape[len(shape) + 1 :])


def _folded(x: jax.Array, split: Split) -> jax.Array:
    return x.reshape(folded_shape(x.shape, split)[0])


def _then(first: Any, then: Any) -> Any:
    """One function after the other, either of which may be missing; the first alone gives a list of one."""
    if first is None or then is None:
        return then if first is None else lambda x: [first(x)]
    return lambda x: then(first(x))
