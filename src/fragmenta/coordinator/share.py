"""What one replica of a fragment holds of every value and does of every node: one pass over the graph."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from fragmenta.coordinator.partition.analyse import Partitioner
from fragmenta.coordinator.partition.block import Block as Partitioned
from fragmenta.coordinator.partition.control import kind_of
from fragmenta.coordinator.partition.knowledge import Known, known_constant
from fragmenta.coordinator.partition.parts import Replica, convert, meets
from fragmenta.coordinator.place import Placement
from fragmenta.errors import ConfigError
from fragmenta.graph import Block, Call, Fragment, Glue, Graph, Loop, Node, Share, Value
from fragmenta.graph.exchange import Exchange
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split, divides, local_shape
from fragmenta.tracing import jaxprs

Place = tuple[int, str, int]
"""A node (-1 is the iteration), one of its `constants`, `carries`, `sequences`, `inputs` or `results`, a position."""


class Walk:
    """One pass over the graph, as one fragment's replica computes it."""

    def __init__(
        self,
        placement: Placement,
        fragment: Fragment,
        together: bool,
        combined: frozenset[int],
        sources: dict[int, frozenset[str]],
        single: frozenset[str],
        partitioner: Partitioner,
    ) -> None:
        self.placement, self.fragment, self.together = placement, fragment, together
        self.combined, self.sources, self.single, self.partitioner = set(combined), sources, single, partitioner
        self.layouts: dict[int, Layout] = {}
        self.known: dict[int, Known] = {}
        self.nodes: dict[int, Node] = {}
        self.conversions: dict[Place, Glue] = {}
        self.elsewhere: set[int] = set()
        self.taken_whole: set[int] = set()
        self.meeting: set[int] = set()
        self.met: set[int] = set()
        self._new = itertools.count(-2, -1)

    def graph(self) -> Graph:
        """The graph of a replica: the same nodes and values, in parts."""
        wide = self.placement.graph
        assert self.fragment.axis is not None
        held: list[Layout] = [
            split if split and divides(value.shape, split, self.partitioner.parts) else WHOLE
            for value, split in zip(wide.state_inputs, wide.splits(self.fragment.axis), strict=True)
        ]
        while True:
            self.taken_whole.clear()
            self._write(wide.block.inputs, held)
            self._block(wide.block)
            after = [self.layouts[value.id] for value in wide.state_outputs]
            # What is taken whole and comes out whole is better held whole.
            settled = [
                WHOLE if layout != WHOLE and then == WHOLE and value.id in self.taken_whole else layout
                for value, layout, then in zip(wide.state_inputs, held, after, strict=True)
            ]
            if settled == held:
                break
            held = settled
        wanted = [*held, *[WHOLE] * len(wide.metrics)]
        outputs = self._converted(-1, "results", wide.block.outputs, wanted)
        inputs = tuple(self._local(value) for value in wide.block.inputs)
        return dataclasses.replace(wide, block=Block(inputs, tuple(self._nodes(wide.block)), outputs))

    def _nodes(self, block: Block) -> list[Node]:
        return [self.nodes[node.id] for node in block.nodes if node.id in self.nodes]

    def _block(self, block: Block) -> None:
        for node in block.nodes:
            if isinstance(node, Loop):
                self._loop(node)
            elif isinstance(node, Glue) and not isinstance(node.origin, jaxprs.Origin):
                self._write(node.outputs, [WHOLE])
                self.known[node.outputs[0].id] = known_constant(node.origin, node.outputs[0])
                self.nodes[node.id] = node
            elif isinstance(node, Call) and node.host:
                self._host(node)
            else:
                self._compute(node)

    def _compute(self, node: Glue | Call) -> None:
        """A node as replicas do it; one of another fragment only says how its results are held."""
        self.elsewhere.discard(node.id)
        block = self._partitioned(node)
        results = [layout for layout, own in zip(block.outputs, _own(node), strict=True) if own]
        for value, known in zip(
            node.outputs, (k for k, own in zip(block.known, _own(node), strict=True) if own), strict=True
        ):
            self.known[value.id] = known
        if isinstance(node, Call) and self.placement.fragment_of(node) != self.fragment.name:
            self._write(node.outputs, [self._arriving(v, now) for v, now in zip(node.outputs, results, strict=True)])
            return
        taken = self._taken(node, block)
        would_meet = isinstance(node, Glue) and not self.together and (taken or block.exchanges)
        if would_meet and self.sources[node.outputs[0].id] & self.single:
            self.elsewhere.add(node.id)
            self._write(node.outputs, [WHOLE if layout == PARTIAL else layout for layout in results])
            return
        kept = [
            WHOLE if now == PARTIAL and v.id in self.combined else now
            for now, v in zip(results, node.outputs, strict=True)
        ]
        summed = [v for now, then, v in zip(results, kept, node.outputs, strict=True) if now != then]
        self._write(node.outputs, kept)
        if isinstance(node, Glue) and (taken or block.exchanges or self.met & {v.id for v in node.inputs}):
            self.meeting.add(node.id)
            self.met.update(v.id for v in node.outputs)
        line = jaxprs.source_line(node.origin.equation)
        label = node.stage if isinstance(node, Call) else node.label
        exchanges = [*taken, *block.exchanges, *(Exchange("sum", v.bytes, 1, label, line) for v in summed)]
        share = Share(
            tuple(e if e.line else dataclasses.replace(e, line=line) for e in exchanges),
            block.work.at(line),
            block.uses_index,
        )
        inputs = tuple(self._local(v) for v in node.inputs)
        outputs = tuple(self._local(v) for v in node.outputs)
        apply = _apply(node, block, results, kept, [self.layouts[v.id] for v in node.inputs])
        self.nodes[node.id] = dataclasses.replace(node, inputs=inputs, outputs=outputs, apply=apply, share=share)

    def _arriving(self, value: Value, layout: Layout) -> Layout:
        """How replicas hold what another fragment makes, if it would have that layout if they made it."""
        graph, axis = self.placement.graph, self.fragment.axis
        if axis is None or axis not in graph.hidden or isinstance(layout, Split):
            return WHOLE if layout == PARTIAL else layout
        # A leaf of the state with the same shape has the axis where this has it, or else nothing is lost but time.
        leaves = zip(graph.state_inputs, graph.splits(axis), strict=True)
        same = (split for leaf, split in leaves if split and leaf.shape == value.shape)
        return next((s for s in same if divides(value.shape, s, self.partitioner.parts)), WHOLE)

    def _partitioned(self, node: Glue | Call) -> Partitioned:
        places = dict(zip(node.origin.inputs, node.inputs, strict=True))
        given = [places.get(variable) for variable in node.origin.closed.jaxpr.invars]
        layouts = [self.layouts[v.id] if v else WHOLE for v in given]
        return self.partitioner.block(node.origin.closed, layouts, [self.known.get(v.id) if v else None for v in given])

    def _taken(self, node: Glue | Call, block: Partitioned) -> list[Exchange]:
        """What replicas have to exchange of a node's inputs because it takes them whole."""
        found = []
        variables = node.origin.closed.jaxpr.invars
        for i in sorted(block.whole):
            value = node.inputs[node.origin.inputs.index(variables[i])]
            self.taken_whole.add(value.id)
            if self.layouts[value.id] == PARTIAL and self.together:
                self.combined.add(value.id)  # from the next pass on it is whole where it is made
            found.append(Exchange(kind_of(self.layouts[value.id]), value.bytes, 1, *block.whole[i]))
        return found

    def _host(self, node: Call) -> None:
        """A stage on the host: replicas do their environments' part of it, or all of it on what they gather."""
        parts, own = self.partitioner.parts, self.placement.fragment_of(node) == self.fragment.name
        on_parts = node.per_environment and self.fragment.axis == "envs"

        def wanted(value: Value) -> Layout:
            return Split(0) if on_parts and divides(value.shape, Split(0), parts) else WHOLE

        results = [wanted(v) for v in node.outputs]
        if not own:
            self._write(node.outputs, [self._arriving(v, s) for v, s in zip(node.outputs, results, strict=True)])
            return
        # One program over all replicas has the whole of every value at hand, if it is of one piece.
        as_one = self.together and not self.placement.apart
        held = [self.layouts[v.id] for v in node.inputs]
        taken = [
            s if as_one and isinstance(s, Split) and s.outer == 1 else wanted(v)
            for v, s in zip(node.inputs, held, strict=True)
        ]
        if node.has_effects and self.placement.apart and any(meets(a, b) for a, b in zip(held, taken, strict=True)):
            raise ConfigError(
                f"stage '{node.stage}' ({jaxprs.source_line(node.origin.equation)}) has effects on the host and takes "
                f"what the replicas of fragment '{self.fragment.name}' hold in parts, so that each would do it for all "
                f"of them: place it in a fragment with one replica"
            )
        inputs = self._converted(node.id, "inputs", node.inputs, taken)
        self._write(node.outputs, results)
        outputs = tuple(self._local(v) for v in node.outputs)
        self.nodes[node.id] = dataclasses.replace(node, inputs=inputs, outputs=outputs)

    def _loop(self, node: Loop) -> None:
        first = len(node.constants)
        carries = [WHOLE if self.layouts[v.id] == PARTIAL else self.layouts[v.id] for v in node.carries]
        outside = [self.layouts[v.id] for v in node.sequences]
        sequences = [WHOLE if s == PARTIAL or (isinstance(s, Split) and s.dim == 0) else s for s in outside]
        slices = [s.moved(s.dim - 1) if isinstance(s, Split) else s for s in sequences]
        for inside, value in zip(node.body.inputs, node.constants, strict=False):
            self.known[inside.id] = self.known.get(value.id)
        constants = [WHOLE if self.layouts[v.id] == PARTIAL else self.layouts[v.id] for v in node.constants]
        final = [False] * len(carries)
        while True:
            self.taken_whole -= {v.id for v in node.body.inputs}
            self._write(node.body.inputs[:first], constants)
            self._write(node.carry_params, carries)
            self._write(node.slice_params, slices)
            self._block(node.body)
            before = list(carries)
            for i, (param, result) in enumerate(zip(node.carry_params, node.carry_results, strict=True)):
                now, after = carries[i], self.layouts[result.id]
                if final[i] or now == after or after == PARTIAL:
                    continue
                if now == WHOLE:
                    carries[i] = after
                elif isinstance(after, Split) or param.id in self.taken_whole:
                    carries[i], final[i] = WHOLE, True
            if carries == before:
                break
        self._write(node.finals, carries)
        rows = [self.layouts[v.id] for v in node.slice_results]
        self._write(node.stacked, [s.moved(s.dim + 1) if isinstance(s, Split) else s for s in rows])
        results = self._converted(node.id, "results", node.carry_results, carries)
        body = Block(
            tuple(self._local(v) for v in node.body.inputs),
            tuple(self._nodes(node.body)),
            (*results, *(self._local(v) for v in node.slice_results)),
        )
        self.nodes[node.id] = Loop(
            node.id,
            node.length,
            node.reverse,
            self._converted(node.id, "constants", node.constants, constants),
            self._converted(node.id, "carries", node.carries, carries),
            self._converted(node.id, "sequences", node.sequences, sequences),
            tuple(self._local(v) for v in node.finals),
            tuple(self._local(v) for v in node.stacked),
            body,
        )

    def _converted(self, loop: int, which: str, values: Sequence[Value], wanted: Sequence[Layout]) -> tuple[Value, ...]:
        """The values in the layouts that are wanted, by a conversion where they are held otherwise."""
        found = []
        for i, (value, layout) in enumerate(zip(values, wanted, strict=True)):
            now, local = self.layouts[value.id], self._local(value)
            self.conversions.pop((loop, which, i), None)
            if now != layout:
                if now == PARTIAL and self.together:
                    self.combined.add(value.id)
                new = Value(next(self._new), local_shape(value.shape, layout, self.partitioner.parts), value.dtype)
                self.layouts[new.id] = layout
                exchanges = (Exchange(kind_of(now), value.bytes, 1, which, ""),) if meets(now, layout) else ()
                share = Share(exchanges, numbered=layout != WHOLE)
                node = Glue(new.id, "convert", (local,), (new,), _conversion(now, layout), share=share)
                self.conversions[loop, which, i], local = node, new
            found.append(local)
        return tuple(found)

    def _local(self, value: Value) -> Value:
        shape = local_shape(value.shape, self.layouts[value.id], self.partitioner.parts)
        return value if shape == value.shape else dataclasses.replace(value, shape=shape)

    def _write(self, values: Sequence[Value], layouts: Sequence[Layout]) -> None:
        self.layouts.update({value.id: layout for value, layout in zip(values, layouts, strict=True)})


def _own(node: Glue | Call) -> list[bool]:
    """Which results of a node's jaxpr are the node's own: the others are just inputs."""
    own = set(node.origin.outputs)
    return [variable in own for variable in node.origin.closed.jaxpr.outvars]


def _apply(node: Glue | Call, block: Partitioned, results: list[Layout], kept: list[Layout], held: list[Layout]) -> Any:
    variables, own = node.origin.closed.jaxpr.invars, _own(node)
    places = {variable: i for i, variable in enumerate(node.origin.inputs)}

    def apply(replica: Replica, *arrays: Any) -> list[Any]:
        values = [arrays[places[v]] if v in places else jaxprs.blank(v.aval.shape, v.aval.dtype) for v in variables]
        whole = {i: convert(values[i], held[places[variables[i]]], WHOLE, replica) for i in block.whole}
        found = [x for x, is_own in zip(block.run(replica, values, whole), own, strict=True) if is_own]
        return [convert(x, now, then, replica) for x, now, then in zip(found, results, kept, strict=True)]

    return apply


def _conversion(now: Layout, wanted: Layout) -> Any:
    def apply(replica: Replica, x: Any) -> list[Any]:
        return [convert(x, now, wanted, replica)]

    return apply
