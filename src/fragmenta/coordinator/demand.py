"""For every value, the fragments that need it, and where each of them gets it."""

import dataclasses

from fragmenta.coordinator.place import Placement
from fragmenta.coordinator.sources import Ownership, prefer
from fragmenta.coordinator.views import View
from fragmenta.graph import Block, Call, Glue, Loop, Value


@dataclasses.dataclass(frozen=True)
class Demand:
    """`needs`: the fragments that hold a value; `sender`: where a fragment gets a value that it does not compute."""

    needs: dict[int, frozenset[str]]
    sender: dict[tuple[int, str], str]
    reporter: tuple[str, ...]
    """The fragment that reports each metric."""


def demand(placement: Placement, ownership: Ownership, views: dict[str, View]) -> Demand:
    """Walk the graph backwards from the next state and the metrics, until nothing new is needed.

    Afterwards every input of every live Call is needed by its fragment, every state leaf by its owner (or by all
    fragments with a copy), every metric by one fragment; and a fragment computes or receives every value it needs.
    """
    solver = _Solver(placement, ownership, views)
    solver.settle()
    solver.adopt_orphans()
    solver.settle()
    solver.senders(placement.graph.block, placement.graph.state_inputs)
    solver.relay()
    reporter = tuple(solver.reporter(metric) for metric in placement.graph.metrics)
    return Demand({key: frozenset(value) for key, value in solver.needs.items()}, solver.sender, reporter)


class _Solver:
    def __init__(self, placement: Placement, ownership: Ownership, views: dict[str, View]) -> None:
        self.placement, self.owner, self.views = placement, ownership.owner, views
        self.fragments = ownership.fragments
        self.needs: dict[int, set[str]] = {}
        self.sender: dict[tuple[int, str], str] = {}
        self.routes: dict[tuple[int, str], str] = {}
        # Free-running fragments do not report: the learner's iterations are the ones that count.
        free_running = {d.source for f in placement.fragments for d in f.delivery if d.kind == "any"}
        unreplicated = [
            f.name for f in placement.fragments if views[f.name].replicas == 1 and f.name not in free_running
        ]
        self.singles = frozenset(unreplicated)
        self.feeders = {f.name: d.source for f in placement.fragments for d in f.delivery if d.kind == "any"}
        """For fragments that take `any`: the fragment that everything from free-running fragments arrives through, so
        that all of it is of one replica."""
        self.glue_of_replicas = self._glue_of_replicas() if self.feeders else frozenset()
        self.keeper = unreplicated[0] if unreplicated else placement.fragments[0].name

    def size(self) -> int:
        return sum(map(len, self.needs.values()))

    def settle(self) -> None:
        """Walk backwards to a fixed point."""
        size = -1
        while size != self.size():
            size = self.size()
            self.outputs()
            self.block(self.placement.graph.block)

    def adopt_orphans(self) -> None:
        """Keep state that changes but that no fragment needs, so that it can be inspected and resumed."""
        graph = self.placement.graph
        for before, after in zip(graph.state_inputs, graph.state_outputs, strict=True):
            if before is not after and not self.of(before):
                self.of(before).add(self.keeper)

    def of(self, value: Value) -> set[str]:
        return self.needs.setdefault(value.id, set())

    def outputs(self) -> None:
        """State is needed by its owner, or by all fragments with a copy; a metric by the fragment that reports it."""
        graph = self.placement.graph
        for before, after in zip(graph.state_inputs, graph.state_outputs, strict=True):
            owner = self.owner[before.id]
            for fragment in [owner] if owner else set(self.of(before)):
                self.of(before).add(fragment)
                self.of(after).add(fragment)
        for metric in graph.metrics:
            self.of(metric).add(self.reporter(metric))

    def reporter(self, metric: Value) -> str:
        """The fragment that reports a metric: one without replicas, which can compute it over all environments."""
        sources = self.fragments[metric.id] & self.singles
        return prefer(self.placement, sources) if sources else self.keeper

    def block(self, block: Block) -> None:
        for node in reversed(block.nodes):
            if isinstance(node, Loop):
                self._loop(node)
            elif isinstance(node, Call):
                if node.has_effects or any(self.of(v) for v in node.outputs):
                    self._add(node.inputs, self.placement.fragment_of(node))
            else:
                self._glue(node)

    def _add(self, values: tuple[Value, ...], fragment: str) -> None:
        for value in values:
            self.of(value).add(fragment)

    def _glue(self, node: Glue) -> None:
        for fragment in set().union(*(self.of(v) for v in node.outputs)):
            maker = self._maker(node, fragment)
            if maker == fragment:
                self._add(node.inputs, fragment)
            else:
                self.routes[node.id, fragment] = maker
                self._add(tuple(v for v in node.outputs if fragment in self.of(v)), maker)

    def _maker(self, node: Glue, fragment: str) -> str:
        """The fragment that computes glue for `fragment`: itself, unless it cannot or fewer bytes cross otherwise."""
        sources = self.fragments[node.outputs[0].id]
        view = self.views[fragment]
        if node.id in self.glue_of_replicas and fragment in self.singles & self.feeders.keys():
            return self.feeders[fragment]
        if node.id in view.external_glue:
            return prefer(self.placement, sources & self.singles)
        if len(sources) != 1 or fragment in sources:
            return fragment
        (other,) = sources
        view = self.views[other]
        inputs = [v for v in node.inputs if self.fragments[v.id]]
        if node.id in view.exchanging_glue and not view.together:
            return fragment
        smaller = sum(v.bytes for v in node.outputs) <= sum(v.bytes for v in inputs)
        return other if smaller and not all(fragment in self.of(v) for v in inputs) else fragment

    def _glue_of_replicas(self) -> frozenset[int]:
        """Glue that computes with state that differs across free-running replicas and that no fragment owns, as keys
        per environment: a fragment without replicas cannot have a copy of it."""
        split_state = set().union(*(view.layouts for view in self.views.values()))
        values = {v.id for v in self.placement.graph.state_inputs if v.id in split_state and not self.owner[v.id]}
        nodes = set()
        for node in self.placement.graph.block.nodes:
            if isinstance(node, Glue) and any(v.id in values for v in node.inputs):
                nodes.add(node.id)
                values.update(v.id for v in node.outputs)
        return frozenset(nodes)

    def _loop(self, loop: Loop) -> None:
        for param, result, first, last in zip(
            loop.carry_params, loop.carry_results, loop.carries, loop.finals, strict=True
        ):
            users = self.of(param) | self.of(last)
            owner = self.owner[param.id]
            for fragment in [owner] if owner and users else users:
                self._add((param, result, first), fragment)
                if owner:
                    self.of(last).add(owner)
        self.block(loop.body)
        # After the body, because a fragment that already has the slices stacks them itself.
        for stacked, result in zip(loop.stacked, loop.slice_results, strict=True):
            sources = self.fragments[result.id]
            for fragment in set(self.of(stacked)):
                if not sources or fragment in self.of(result):
                    self._add((result,), fragment)
                else:
                    maker = prefer(self.placement, sources)
                    self._add((result, stacked), maker)
        for inside, outside in zip(loop.body.inputs, loop.inputs, strict=True):
            if inside.id not in self.owner:
                self.of(outside).update(self.of(inside))

    def senders(self, block: Block, params: tuple[Value, ...]) -> None:
        """Once all needs are known: where each fragment gets each value that it does not compute."""
        for param in params:
            self._from(param, self.owner[param.id])
        for node in block.nodes:
            if isinstance(node, Call):
                for value in node.outputs:
                    self._from(value, self.placement.fragment_of(node))
            elif isinstance(node, Glue):
                for value in node.outputs:
                    for fragment in self.of(value):
                        maker = self.routes.get((node.id, fragment))
                        if maker:
                            self.sender[value.id, fragment] = maker
            else:
                self.senders(node.body, node.carry_params)
                for param, last in zip(node.carry_params, node.finals, strict=True):
                    self._from(last, self.owner[param.id])
                for stacked, result in zip(node.stacked, node.slice_results, strict=True):
                    if self.fragments[result.id]:
                        home = prefer(self.placement, self.fragments[result.id])
                        receivers = self.of(stacked) - self.of(result)
                        self.sender.update({(stacked.id, fragment): home for fragment in receivers})

    def _from(self, value: Value, home: str | None) -> None:
        if home:
            self.sender.update({(value.id, fragment): home for fragment in self.of(value) - {home}})

    def relay(self) -> None:
        """Let what a fragment that takes `any` needs from other free-running fragments arrive through its feeder."""
        for (value, consumer), home in list(self.sender.items()):
            feeder = self.feeders.get(consumer)
            while feeder and home in self.feeders.values() and home != feeder:
                self.sender[value, consumer] = feeder
                if feeder in self.needs[value]:
                    break
                self.needs[value].add(feeder)
                self.sender[value, feeder] = home
                consumer, feeder = feeder, self.feeders.get(feeder)
