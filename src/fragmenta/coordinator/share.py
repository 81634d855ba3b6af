"""The part of every value that a replica holds and of every node that it computes: one pass over the graph."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from fragmenta.coordinator.partition.analyse import Partitioner
from fragmenta.coordinator.partition.block import PartitionedJaxpr
from fragmenta.coordinator.partition.control import kind_of
from fragmenta.coordinator.partition.knowledge import Known, known_constant
from fragmenta.coordinator.partition.parts import Replica, convert, needs_exchange
from fragmenta.coordinator.place import Placement
from fragmenta.errors import ConfigError
from fragmenta.graph import Block, Call, Fragment, Glue, Graph, Loop, Node, Share, Value
from fragmenta.graph.exchange import Exchange
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split, divides, local_shape
from fragmenta.tracing import jaxprs

Place = tuple[int, str, int]
"""A node id (-1 is the iteration), one of `constants`, `carries`, `sequences`, `inputs` or `results`, a position."""
Layouts = list[Layout]


class Walk:
    """One pass over the graph, as a replica of one fragment computes it."""

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
        self.external_glue: set[int] = set()
        self.taken_whole: set[int] = set()
        self.exchanging_glue: set[int] = set()
        self.exchanged_values: set[int] = set()
        self._new_ids = itertools.count(-2, -1)

    def graph(self) -> Graph:
        """The graph of a replica: the same nodes and values, at the size of its part."""
        full_graph = self.placement.graph
        assert self.fragment.axis is not None
        state_layouts: list[Layout] = [
            split if split and divides(value.shape, split, self.partitioner.parts) else WHOLE
            for value, split in zip(full_graph.state_inputs, full_graph.splits(self.fragment.axis), strict=True)
        ]
        while True:
            self.taken_whole.clear()
            self._write(full_graph.block.inputs, state_layouts)
            self._block(full_graph.block)
            new_layouts = [self.layouts[value.id] for value in full_graph.state_outputs]
            # State that is used whole and written whole is cheaper to hold whole.
            updated = [
                WHOLE if layout != WHOLE and new == WHOLE and value.id in self.taken_whole else layout
                for value, layout, new in zip(full_graph.state_inputs, state_layouts, new_layouts, strict=True)
            ]
            if updated == state_layouts:
                break
            state_layouts = updated
        targets = [*state_layouts, *[WHOLE] * len(full_graph.metrics)]
        outputs = self._converted(-1, "results", full_graph.block.outputs, targets)
        inputs = tuple(self._local(value) for value in full_graph.block.inputs)
        return dataclasses.replace(full_graph, block=Block(inputs, tuple(self._nodes(full_graph.block)), outputs))

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
        """A node as a replica computes it; of another fragment's node, only the layouts of the results are recorded."""
        self.external_glue.discard(node.id)
        block = self._partitioned(node)
        computed = _computed_outputs(node)
        results = list(itertools.compress(block.outputs, computed))
        for value, known in zip(node.outputs, itertools.compress(block.known, computed), strict=True):
            self.known[value.id] = known
        if isinstance(node, Call) and self.placement.fragment_of(node) != self.fragment.name:
            self._write(node.outputs, [self._arriving(v, now) for v, now in zip(node.outputs, results, strict=True)])
            return
        input_exchanges = self._input_exchanges(node, block)
        exchanges_values = isinstance(node, Glue) and not self.together and (input_exchanges or block.exchanges)
        if exchanges_values and self.sources[node.outputs[0].id] & self.single:
            self.external_glue.add(node.id)
            self._write(node.outputs, [WHOLE if layout == PARTIAL else layout for layout in results])
            return
        output_layouts = [
            WHOLE if now == PARTIAL and v.id in self.combined else now
            for now, v in zip(results, node.outputs, strict=True)
        ]
        summed_values = [v for now, then, v in zip(results, output_layouts, node.outputs, strict=True) if now != then]
        self._write(node.outputs, output_layouts)
        if isinstance(node, Glue) and (
            input_exchanges or block.exchanges or self.exchanged_values & {v.id for v in node.inputs}
        ):
            self.exchanging_glue.add(node.id)
            self.exchanged_values.update(v.id for v in node.outputs)
        line = jaxprs.source_line(node.origin.equation)
        label = node.stage if isinstance(node, Call) else node.label
        sums = (Exchange("sum", v.bytes, 1, label, line) for v in summed_values)
        exchanges = [*input_exchanges, *block.exchanges, *sums]
        share = Share(
            tuple(e if e.line else dataclasses.replace(e, line=line) for e in exchanges),
            block.work.at(line),
            block.uses_index,
        )
        inputs = tuple(self._local(v) for v in node.inputs)
        outputs = tuple(self._local(v) for v in node.outputs)
        apply = _apply(node, block, results, output_layouts, [self.layouts[v.id] for v in node.inputs])
        self.nodes[node.id] = dataclasses.replace(node, inputs=inputs, outputs=outputs, apply=apply, share=share)

    def _arriving(self, value: Value, layout: Layout) -> Layout:
        """The layout of a value received from another fragment, given the layout it would have if computed here."""
        graph, axis = self.placement.graph, self.fragment.axis
        if axis is None or axis not in graph.hidden or isinstance(layout, Split):
            return WHOLE if layout == PARTIAL else layout
        # Guess that the axis is where a state leaf of the same shape has it; a wrong guess only costs time.
        leaves = zip(graph.state_inputs, graph.splits(axis), strict=True)
        matches = (split for leaf, split in leaves if split and leaf.shape == value.shape)
        return next((s for s in matches if divides(value.shape, s, self.partitioner.parts)), WHOLE)

    def _partitioned(self, node: Glue | Call) -> PartitionedJaxpr:
        value_of = dict(zip(node.origin.inputs, node.inputs, strict=True))
        inputs = [value_of.get(variable) for variable in node.origin.closed.jaxpr.invars]
        layouts = [self.layouts[v.id] if v else WHOLE for v in inputs]
        known = [self.known.get(v.id) if v else None for v in inputs]
        return self.partitioner.block(node.origin.closed, layouts, known)

    def _input_exchanges(self, node: Glue | Call, block: PartitionedJaxpr) -> list[Exchange]:
        """Exchanges for those inputs of a node that it needs whole."""
        exchanges = []
        variables = node.origin.closed.jaxpr.invars
        for i in sorted(block.whole):
            value = node.inputs[node.origin.inputs.index(variables[i])]
            self.taken_whole.add(value.id)
            if self.layouts[value.id] == PARTIAL and self.together:
                self.combined.add(value.id)  # from the next pass on it is summed where it is computed
            exchanges.append(Exchange(kind_of(self.layouts[value.id]), value.bytes, 1, *block.whole[i]))
        return exchanges

    def _host(self, node: Call) -> None:
        """A stage on the host: each replica runs it for its own environments, or for all of them on gathered inputs."""
        parts, is_own_stage = self.partitioner.parts, self.placement.fragment_of(node) == self.fragment.name
        on_parts = node.per_environment and self.fragment.axis == "envs"

        def layout_on_host(value: Value) -> Layout:
            return Split(0) if on_parts and divides(value.shape, Split(0), parts) else WHOLE

        results = [layout_on_host(v) for v in node.outputs]
        if not is_own_stage:
            self._write(node.outputs, [self._arriving(v, s) for v, s in zip(node.outputs, results, strict=True)])
            return
        # One program over all replicas can read a split value whole, if its parts are contiguous.
        as_one = self.together and not self.placement.apart
        input_layouts = [self.layouts[v.id] for v in node.inputs]
        targets = [
            s if as_one and isinstance(s, Split) and s.outer == 1 else layout_on_host(v)
            for v, s in zip(node.inputs, input_layouts, strict=True)
        ]
        gathers = any(needs_exchange(a, b) for a, b in zip(input_layouts, targets, strict=True))
        if node.has_effects and self.placement.apart and gathers:
            raise ConfigError(
                f"stage '{node.stage}' ({jaxprs.source_line(node.origin.equation)}) has side effects on the host and "
                f"takes values that are split across the replicas of fragment '{self.fragment.name}', so every replica "
                f"would repeat the effects for all environments: place it in a fragment with one replica"
            )
        inputs = self._converted(node.id, "inputs", node.inputs, targets)
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

    def _converted(self, loop: int, slot: str, values: Sequence[Value], targets: Sequence[Layout]) -> tuple[Value, ...]:
        """The values in the target layouts, each converted where its layout differs."""
        converted = []
        for i, (value, layout) in enumerate(zip(values, targets, strict=True)):
            now, local = self.layouts[value.id], self._local(value)
            self.conversions.pop((loop, slot, i), None)
            if now != layout:
                if now == PARTIAL and self.together:
                    self.combined.add(value.id)
                new = Value(next(self._new_ids), local_shape(value.shape, layout, self.partitioner.parts), value.dtype)
                self.layouts[new.id] = layout
                exchanges = (Exchange(kind_of(now), value.bytes, 1, slot, ""),) if needs_exchange(now, layout) else ()
                share = Share(exchanges, uses_index=layout != WHOLE)
                node = Glue(new.id, "convert", (local,), (new,), _conversion(now, layout), share=share)
                self.conversions[loop, slot, i], local = node, new
            converted.append(local)
        return tuple(converted)

    def _local(self, value: Value) -> Value:
        shape = local_shape(value.shape, self.layouts[value.id], self.partitioner.parts)
        return value if shape == value.shape else dataclasses.replace(value, shape=shape)

    def _write(self, values: Sequence[Value], layouts: Sequence[Layout]) -> None:
        self.layouts.update({value.id: layout for value, layout in zip(values, layouts, strict=True)})


def _computed_outputs(node: Glue | Call) -> list[bool]:
    """For each output of a node's jaxpr, whether the node computes it; the others are forwarded inputs."""
    computed = set(node.origin.outputs)
    return [variable in computed for variable in node.origin.closed.jaxpr.outvars]


def _apply(
    node: Glue | Call, block: PartitionedJaxpr, results: Layouts, targets: Layouts, input_layouts: Layouts
) -> Any:
    variables, computed = node.origin.closed.jaxpr.invars, _computed_outputs(node)
    positions = {variable: i for i, variable in enumerate(node.origin.inputs)}

    def apply(replica: Replica, *arrays: Any) -> list[Any]:
        values = [
            arrays[positions[v]] if v in positions else jaxprs.blank(v.aval.shape, v.aval.dtype) for v in variables
        ]
        whole = {i: convert(values[i], input_layouts[positions[variables[i]]], WHOLE, replica) for i in block.whole}
        outputs = itertools.compress(block.run(replica, values, whole), computed)
        return [convert(x, now, then, replica) for x, now, then in zip(outputs, results, targets, strict=True)]

    return apply


def _conversion(now: Layout, target: Layout) -> Any:
    def apply(replica: Replica, x: Any) -> list[Any]:
        return [convert(x, now, target, replica)]

    return apply
