"""Cut the graph into one program per fragment; each value that crosses between them becomes a Send and a Recv."""

import dataclasses

from fragmenta.coordinator.delivery import check_delivery, check_parts, replies_last
from fragmenta.coordinator.demand import Demand, demand
from fragmenta.coordinator.partition.analyse import Partitioner
from fragmenta.coordinator.place import Placement
from fragmenta.coordinator.sources import Ownership, ownership_of
from fragmenta.coordinator.views import View, view, whole_view
from fragmenta.errors import ConfigError
from fragmenta.graph import (
    Block,
    Call,
    Compute,
    Glue,
    Instruction,
    Interface,
    Loop,
    Node,
    Operator,
    Plan,
    Program,
    Recv,
    Repeat,
    Send,
    Value,
)
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout


class _ViewError(Exception):
    """A fragment needs another view: its replicas must run together, or hold a value summed, not as partial sums."""

    def __init__(self, fragment: str, together: bool, summed: int | None = None) -> None:
        super().__init__(fragment)
        self.fragment, self.together, self.summed = fragment, together, summed


def project_placement(placement: Placement, policy: str) -> Plan:
    """One program per fragment. Afterwards sends and receives pair up in program order, every program keeps its state,
    and all programs together compute what the graph computes.

    Replicas of a fragment that exchange values run together.
    """
    if any(d.kind != "every" for f in placement.fragments for d in f.delivery):
        return asynchronous_plan(placement, policy)
    together: set[str] = set()
    combined: dict[str, frozenset[int]] = {}
    findings = placement.graph.findings
    partitioners: dict[int, Partitioner] = findings.setdefault("partitioners", {})
    for fragment in placement.fragments:
        partitioners.setdefault(fragment.replicas, Partitioner(fragment.replicas))
    ownership = ownership_of(placement)
    views: dict[str, View] = {}
    while True:
        for fragment in placement.fragments:
            name = fragment.name
            if fragment.replicas == 1:
                views[name] = whole_view(placement, fragment)
            elif name not in views:
                sums = combined.get(name, frozenset())
                with_parts = partitioners[fragment.replicas]
                views[name] = view(placement, fragment, name in together, sums, ownership.fragments, with_parts)
                if name not in together and _stages_meet(views[name], placement):
                    together.add(name)
                    views[name] = view(placement, fragment, True, sums, ownership.fragments, with_parts)
        try:
            plan = cut(placement, policy, views, ownership)
            check_delivery(plan)
            return plan
        except _ViewError as error:
            if error.together:
                together.add(error.fragment)
            if error.summed is not None:
                combined[error.fragment] = combined.get(error.fragment, frozenset()) | {error.summed}
            del views[error.fragment]


def _stages_meet(its_view: View, placement: Placement) -> bool:
    """Whether replicas exchange values within the stages of their fragment."""
    calls = [node for node in its_view.nodes.values() if isinstance(node, Call)]
    own_calls = (call for call in calls if placement.fragment_of(call) == its_view.fragment.name)
    return any(call.share and call.share.exchanges for call in own_calls)


def asynchronous_plan(placement: Placement, policy: str) -> Plan:
    """The plan under an asynchronous distribution policy: each replica works as if there were no others.

    Everything is traced at the size of one replica's environments, because data arrives from one replica at a time.
    """
    replicated = [f for f in placement.fragments if f.replicas > 1 and f.axis]
    if len({f.replicas for f in replicated}) > 1:
        counts = " and ".join(f"{f.replicas} of '{f.name}'" for f in replicated)
        raise ConfigError(f"asynchronous fragments have as many replicas as each other, but there are {counts}")
    if not replicated:
        ownership = ownership_of(placement)
        plan = cut(placement, policy, {f.name: whole_view(placement, f) for f in placement.fragments}, ownership)
        check_delivery(plan)
        return plan
    axis, count = replicated[0].axis, replicated[0].replicas
    assert axis is not None
    full_graph = placement.graph
    graph = full_graph.retrace(full_graph.sizes | {axis: full_graph.sizes[axis] // count}, full_graph.opened)
    placement = dataclasses.replace(placement, graph=graph)
    ownership = ownership_of(placement)
    splits = dict(zip((v.id for v in graph.state_inputs), full_graph.splits(axis), strict=True))
    split_state: dict[int, Layout] = {key: split for key, split in splits.items() if split}
    views = {}
    for fragment in placement.fragments:
        whole = dataclasses.replace(whole_view(placement, fragment), parts=count)
        views[fragment.name] = dataclasses.replace(whole, layouts=split_state if fragment.replicas > 1 else {})
    plan = cut(placement, policy, views, ownership)
    check_delivery(plan)
    check_parts(plan, full_graph, split_state)
    return plan


def cut(placement: Placement, policy: str, views: dict[str, View], ownership: Ownership) -> Plan:
    """One program per fragment, from its view of the graph."""
    needs = demand(placement, ownership, views)
    cutter = _Cutter(placement, views, needs)
    graph = placement.graph
    instructions = cutter.block(graph.block, graph.state_inputs, 1)
    programs = []
    for name, its_view in views.items():
        state = tuple(i for i, v in enumerate(graph.state_inputs) if cutter.makes(v, name))
        metrics = tuple(i for i, reporter in enumerate(needs.reporter) if reporter == name)
        results = [*state, *(len(graph.state_inputs) + i for i in metrics)]
        last = [c for i in results if (c := its_view.conversions.get((-1, "results", i)))]
        program = Program(
            fragment=its_view.fragment,
            replicas=its_view.replicas,
            parts=its_view.parts,
            instructions=replies_last([*instructions[name], *map(Compute, last)]),
            graph=its_view.graph,
            state=state,
            metrics=metrics,
            layouts=its_view.layouts,
            together=its_view.together,
        )
        if program.fragment.replicas > 1 and not program.together and program.exchanges():
            raise _ViewError(name, together=True)
        programs.append(program)
    return Plan(policy, graph, tuple(programs), tuple(cutter.interfaces))


class _Cutter:
    def __init__(self, placement: Placement, views: dict[str, View], needs: Demand) -> None:
        self.placement, self.views, self.needs = placement, views, needs
        self.interfaces: list[Interface] = []

    def has(self, value: Value, fragment: str) -> bool:
        return fragment in self.needs.needs.get(value.id, ())

    def makes(self, value: Value, fragment: str) -> bool:
        return self.has(value, fragment) and (value.id, fragment) not in self.needs.sender

    def block(self, block: Block, params: tuple[Value, ...], times: int) -> dict[str, list[Instruction]]:
        """Each fragment's instructions for the block, in an order that is consistent across fragments."""
        programs: dict[str, list[Instruction]] = {name: [] for name in self.views}
        for param in params:
            self._exchange(param, programs, times)
        for node in block.nodes:
            if isinstance(node, Loop):
                self._loop(node, programs, times)
            else:
                for name, its_view in self.views.items():
                    if self._runs(node, name):
                        twin = its_view.nodes[node.id]
                        assert isinstance(twin, (Glue, Call))
                        inputs = [("inputs", i) for i in range(len(node.inputs))]
                        programs[name] += [*self._conversions(its_view, node, inputs), Compute(twin)]
            for value in node.outputs:
                self._exchange(value, programs, times)
        return programs

    def _runs(self, node: Glue | Call, name: str) -> bool:
        if isinstance(node, Call):
            live = node.has_effects or any(self.needs.needs.get(v.id) for v in node.outputs)
            return live and self.placement.fragment_of(node) == name
        return any(self.makes(value, name) for value in node.outputs)

    def _loop(self, loop: Loop, programs: dict[str, list[Instruction]], times: int) -> None:
        bodies = self.block(loop.body, loop.carry_params, times * loop.length)
        for name, its_view in self.views.items():
            carries = tuple(i for i, v in enumerate(loop.carry_params) if self.makes(v, name))
            stacked = tuple(i for i, v in enumerate(loop.stacked) if self.makes(v, name))
            sequences = tuple(i for i, v in enumerate(loop.slice_params) if self.has(v, name))
            if bodies[name] or carries or stacked:
                twin = its_view.nodes[loop.id]
                assert isinstance(twin, Loop)
                params = zip(loop.body.inputs, loop.constants, strict=False)
                constants = [i for i, (inside, _) in enumerate(params) if self.has(inside, name)]
                begin = [("constants", i) for i in constants]
                begin += [("carries", i) for i in carries] + [("sequences", i) for i in sequences]
                programs[name] += self._conversions(its_view, loop, begin)
                body = [*bodies[name], *self._conversions(its_view, loop, [("results", i) for i in carries])]
                programs[name].append(Repeat(twin, tuple(body), carries, sequences, stacked))

    def _conversions(self, its_view: View, node: Node, places: list[tuple[str, int]]) -> list[Compute]:
        nodes = (its_view.conversions.get((node.id, which, i)) for which, i in places)
        return [Compute(node) for node in nodes if node]

    def _exchange(self, value: Value, programs: dict[str, list[Instruction]], times: int) -> None:
        senders = {name: s for name in self.views if (s := self.needs.sender.get((value.id, name)))}
        # Where one consumer passes it on to another, that one receives it first.
        for consumer, producer in sorted(senders.items(), key=lambda pair: pair[1] in senders):
            if self.has(value, consumer):
                interface = self._interface(value, producer, consumer, times)
                self.interfaces.append(interface)
                programs[producer].append(Send(interface))
                programs[consumer].append(Recv(interface))

    def _interface(self, value: Value, producer: str, consumer: str, times: int) -> Interface:
        source, target = self.views[producer], self.views[consumer]
        name = self.placement.graph.names.get(value.id, "")
        producer_layout = source.layout(value) if source.replicas > 1 else WHOLE
        consumer_layout = target.layout(value) if target.replicas > 1 else WHOLE
        if source.layout(value) == PARTIAL and (source.replicas == 1 or target.replicas > 1):
            raise _ViewError(producer, together=True, summed=value.id)
        if target.layout(value) == PARTIAL:  # an interface delivers the sum
            raise _ViewError(consumer, together=False, summed=value.id)
        delivery = target.fragment.delivery_from(producer)
        if delivery.kind == "any":  # the bound is declared by the source, on what it takes from the consumer
            delivery = dataclasses.replace(delivery, max_lag=source.fragment.delivery_from(consumer).max_lag)
        operator = _operator(producer_layout, consumer_layout, source, target)
        copies = {Operator.BROADCAST: target.replicas, Operator.REDUCE: source.replicas}.get(operator, 1)
        if operator == Operator.ALL_TO_ALL and consumer_layout == WHOLE:
            copies = target.replicas
        return Interface(
            value, name, producer, consumer, operator, producer_layout, consumer_layout, times, copies, delivery
        )


def _operator(producer_layout: Layout, consumer_layout: Layout, source: View, target: View) -> Operator:
    """The operator that follows from both sides' replica counts and layouts of the value."""
    kind = target.fragment.delivery_from(source.fragment.name).kind
    if kind in ("any", "reply"):
        return Operator.GATHER if kind == "any" and source.replicas > target.replicas else Operator.SEND
    if source.replicas == 1 or producer_layout == WHOLE:
        if target.replicas == 1:
            return Operator.SEND
        if consumer_layout != WHOLE:
            return Operator.SCATTER
        same = source.replicas == target.replicas
        return Operator.SEND if same else Operator.BROADCAST
    if target.replicas == 1:
        return Operator.REDUCE if producer_layout == PARTIAL else Operator.GATHER
    same = source.replicas == target.replicas and producer_layout == consumer_layout
    return Operator.SEND if same else Operator.ALL_TO_ALL
