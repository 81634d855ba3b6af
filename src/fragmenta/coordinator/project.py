"""Cut the graph into one program per fragment, with the values that cross as pairs of Send and Recv."""

import dataclasses

from fragmenta.coordinator.delivery import check_delivery
from fragmenta.coordinator.demand import Demand, demand
from fragmenta.coordinator.place import Placement
from fragmenta.coordinator.sources import own
from fragmenta.coordinator.spread import Spread
from fragmenta.coordinator.views import View, view
from fragmenta.errors import ConfigError
from fragmenta.graph import (
    Block,
    Call,
    Fragment,
    Glue,
    Instruction,
    Interface,
    Loop,
    Operator,
    Plan,
    Program,
    Recv,
    Repeat,
    Run,
    Send,
    Value,
)


class _DiffersError(ConfigError):
    """A value that differs among replicas is used as if it did not."""

    def __init__(self, fragment: str, message: str) -> None:
        super().__init__(message)
        self.fragment = fragment


def project(placement: Placement, policy: str) -> Plan:
    """One program per fragment. Afterwards sends and receives pair up in program order, and every program keeps its
    state: what all programs together compute is what the graph computes.

    Replicas of a fragment whose stages hold marks run together, as do those that need the result of a mark themselves.
    """
    together = {fragment.name for fragment in placement.fragments if _meet(placement, fragment)}
    marks = [
        n for n in placement.graph.block.walk() if (isinstance(n, Glue) and n.mark) or (isinstance(n, Call) and n.marks)
    ]
    while True:
        try:
            plan = _project(placement, policy, together)
            check_delivery(plan)
            return plan
        except _DiffersError as error:
            if not marks or error.fragment in together:
                raise
            together.add(error.fragment)


def _meet(placement: Placement, fragment: Fragment) -> bool:
    """Whether the replicas of a fragment meet within its stages."""
    calls = (node for node in placement.graph.block.walk() if isinstance(node, Call))
    own = (call for call in calls if placement.fragment_of(call) == fragment.name)
    return fragment.replicas > 1 and any(mark.applies(fragment.axis) for call in own for mark in call.marks)


def _project(placement: Placement, policy: str, together: set[str]) -> Plan:
    ownership = own(placement)
    views = {f.name: view(placement, f, f.name in together, ownership.fragments) for f in placement.fragments}
    needs = demand(placement, ownership, views)
    cutter = _Cutter(placement, views, needs)
    instructions = cutter.block(placement.graph.block, placement.graph.state_inputs, 1)
    graph = placement.graph
    programs = []
    for name, its_view in views.items():
        program = Program(
            fragment=its_view.fragment,
            replicas=its_view.replicas,
            parts=its_view.parts,
            instructions=tuple(instructions[name]),
            graph=its_view.graph,
            state=tuple(i for i, v in enumerate(graph.state_inputs) if cutter.makes(v, name)),
            metrics=tuple(i for i, reporter in enumerate(needs.reporter) if reporter == name),
            axes=its_view.axes,
            together=its_view.together,
        )
        _check_replicas_agree(program, its_view)
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
        """What each fragment does for the block, in one order that all of them follow."""
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
                        programs[name].append(Run(twin))
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
                programs[name].append(Repeat(twin, tuple(bodies[name]), carries, sequences, stacked))

    def _exchange(self, value: Value, programs: dict[str, list[Instruction]], times: int) -> None:
        for consumer in self.views:
            producer = self.needs.sender.get((value.id, consumer))
            if producer is not None and self.has(value, consumer):
                interface = self._interface(value, producer, consumer, times)
                self.interfaces.append(interface)
                programs[producer].append(Send(interface))
                programs[consumer].append(Recv(interface))

    def _interface(self, value: Value, producer: str, consumer: str, times: int) -> Interface:
        source, target = self.views[producer], self.views[consumer]
        name = self.placement.graph.names.get(value.id, "")
        parts_axis = target.axes.get(value.id)
        axis = source.axes.get(value.id) if source.replicas > 1 else parts_axis
        operator, reduction = _operator(value, name, axis, source, target)
        if operator == Operator.SCATTER:
            axis = parts_axis
        copies = {Operator.BROADCAST: target.replicas, Operator.REDUCE: source.replicas}.get(operator, 1)
        if operator == Operator.ALL_TO_ALL and parts_axis is None:
            copies = target.replicas
        delivery = target.fragment.delivery_from(producer)
        if delivery.kind == "any":  # how old the source's values may be is known here only
            delivery = dataclasses.replace(delivery, max_lag=source.fragment.delivery_from(consumer).max_lag)
        crossing = value, name, producer, consumer, operator, axis, reduction, times, copies, delivery
        return Interface(*crossing, parts_axis if operator == Operator.ALL_TO_ALL else None)


def _operator(value: Value, name: str, axis: int | None, source: View, target: View) -> tuple[Operator, str | None]:
    """The table of design: producer's and consumer's replicas and the value's dimension give the operator."""
    if source.together and source.spread[value.id] == Spread.PARTIAL:
        raise _differs(value, name, source, "leaves")
    if source.replicas == 1:
        if target.replicas == 1:
            return Operator.SEND, None
        return (Operator.BROADCAST if axis is None else Operator.SCATTER), None
    mark, spread = source.marked.get(value.id), source.spread[value.id]
    if target.replicas == 1 and mark in ("mean", "sum"):
        return Operator.REDUCE, mark
    if target.replicas == 1 and (mark == "gather" or spread == Spread.SPLIT):
        return Operator.GATHER, None
    if spread == Spread.PARTIAL:
        raise _differs(value, name, source, "leaves")
    same_parts = target.replicas == source.replicas and target.fragment.axis == source.fragment.axis
    if same_parts or (spread == Spread.SHARED and value.id not in target.axes):
        return Operator.SEND, None
    if target.fragment.axis != source.fragment.axis:
        # Each has another cut of it. What all of the source have alike, one of them hands out.
        return (Operator.SCATTER if spread == Spread.SHARED else Operator.ALL_TO_ALL), None
    raise ConfigError(
        f"'{name}' {value} goes from {source.replicas} replicas of '{source.fragment.name}' along "
        f"'{source.fragment.axis}' to {target.replicas} of '{target.fragment.name}' along '{target.fragment.axis}': "
        f"give both as many along the same axis, or one of them a single replica"
    )


def _check_replicas_agree(program: Program, its_view: View) -> None:
    """State that replicas keep, and metrics that they report, must be shared or split by environment."""
    if program.fragment.replicas == 1:
        return
    graph = program.graph
    for i in program.state:
        before, after = graph.state_inputs[i], graph.state_outputs[i]
        if its_view.spread[after.id] != its_view.spread[before.id] and its_view.spread[after.id] != Spread.SHARED:
            raise _differs(after, graph.state_names[i], its_view, "is kept by")
    for i in program.metrics:
        if its_view.spread[graph.metrics[i].id] != Spread.SHARED:
            raise _differs(graph.metrics[i], graph.metric_names[i], its_view, "is a metric of")


def _differs(value: Value, name: str, view: View, how: str) -> _DiffersError:
    fragment = view.fragment
    return _DiffersError(
        fragment.name,
        f"'{name}' {value} {how} fragment '{fragment.name}', but its {fragment.replicas} replicas would each have "
        f"another one: wrap it in all_mean or all_sum, or keep one entry per environment",
    )
