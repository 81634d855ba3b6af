"""Where values come from: whose stages a value is made of, and so whose a piece of state is."""

import dataclasses

from fragmenta.coordinator.place import Placement
from fragmenta.graph import Block, Call, Loop, Value

Sources = frozenset[str | int]
"""Fragments, and inputs of the enclosing block (by id) that stand for whatever they are made of."""


@dataclasses.dataclass(frozen=True)
class Ownership:
    """`fragments` says, per value, whose stages it is made of within its block; `owner` who keeps a piece of state.

    State that glue alone writes (keys, counters) has no owner: each fragment that needs it carries its own copy.
    """

    fragments: dict[int, frozenset[str]]
    owner: dict[int, str | None]


def own(placement: Placement) -> Ownership:
    """Afterwards every value has its fragments, and every leaf of the state and every carry has an owner or None."""
    solver = _Solver(placement)
    graph = placement.graph
    solver.block(graph.block)
    solver.settle(graph.block, graph.state_inputs, graph.state_outputs)
    return Ownership(solver.fragments, solver.owner)


def prefer(placement: Placement, candidates: frozenset[str]) -> str:
    """The fragment to compute something that several could: one without replicas if there is one."""
    named = [f for f in placement.fragments if f.name in candidates]
    return min(named, key=lambda f: f.replicas > 1).name


class _Solver:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.raw: dict[int, Sources] = {}
        self.fragments: dict[int, frozenset[str]] = {}
        self.owner: dict[int, str | None] = {}

    def block(self, block: Block) -> None:
        """The raw sources of every value in the block, with its inputs standing for themselves."""
        self.raw.update({value.id: frozenset([value.id]) for value in block.inputs})
        for node in block.nodes:
            if isinstance(node, Loop):
                self._loop(node)
                continue
            joined: Sources = frozenset().union(*(self.raw[v.id] for v in node.inputs))
            if isinstance(node, Call):
                joined = frozenset([self.placement.fragment_of(node)])
            self.raw.update({value.id: joined for value in node.outputs})

    def settle(self, block: Block, params: tuple[Value, ...], results: tuple[Value, ...]) -> None:
        """Resolve what the block's inputs stand for: state for its writers, everything else for nobody."""
        writers: dict[int, frozenset[str]] = {value.id: frozenset() for value in block.inputs}
        while True:
            found = {
                param.id: writers[param.id] | self._resolve(self.raw[result.id], writers)
                for param, result in zip(params, results, strict=True)
            }
            if all(writers[key] == value for key, value in found.items()):
                break
            writers.update(found)
        for param in params:
            self.owner[param.id] = prefer(self.placement, writers[param.id]) if writers[param.id] else None
        for value in (*block.inputs, *(v for node in block.nodes for v in node.outputs)):
            self.fragments[value.id] = self._resolve(self.raw[value.id], writers)

    def _loop(self, loop: Loop) -> None:
        self.block(loop.body)
        self.settle(loop.body, loop.carry_params, loop.carry_results)
        outside = {inner.id: self.raw[outer.id] for inner, outer in zip(loop.body.inputs, loop.inputs, strict=True)}
        reached = {param.id: self.raw[param.id] | self.raw[result.id] for param, result in self._carries(loop)}
        grown = True
        while grown:
            closed = {key: self._expand(tokens, reached) for key, tokens in reached.items()}
            grown, reached = closed != reached, closed
        finals = [(final, reached[param.id]) for final, param in zip(loop.finals, loop.carry_params, strict=True)]
        stacked = [
            (outer, self._expand(self.raw[inner.id], reached))
            for outer, inner in zip(loop.stacked, loop.slice_results, strict=True)
        ]
        for value, tokens in finals + stacked:
            inside = frozenset(t for t in tokens if isinstance(t, str))
            # Written by stages inside: theirs. By glue alone: whoever runs it needs what it started from.
            self.raw[value.id] = inside or frozenset().union(*(outside[t] for t in tokens if isinstance(t, int)))

    def _carries(self, loop: Loop) -> list[tuple[Value, Value]]:
        return list(zip(loop.carry_params, loop.carry_results, strict=True))

    def _expand(self, tokens: Sources, reached: dict[int, Sources]) -> Sources:
        more = (reached[t] for t in tokens if isinstance(t, int) and t in reached)
        return tokens.union(*more)

    def _resolve(self, tokens: Sources, writers: dict[int, frozenset[str]]) -> frozenset[str]:
        named = frozenset(t for t in tokens if isinstance(t, str))
        return named.union(*(writers[t] for t in tokens if isinstance(t, int)))
