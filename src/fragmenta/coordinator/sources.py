"""Data provenance: which fragments' stages a value is computed from, and hence which fragment owns each state leaf."""

import dataclasses

from fragmenta.coordinator.place import Placement
from fragmenta.graph import Block, Call, Loop, Value

Sources = frozenset[str | int]
"""Fragment names, and ids of inputs of the enclosing block, which stand for their own sources."""


@dataclasses.dataclass(frozen=True)
class Ownership:
    """`fragments`: the fragments whose stages a value is computed from; `owner`: the fragment that keeps a state leaf.

    State that only glue writes (keys, counters) has no owner: each fragment that needs it keeps a copy.
    """

    fragments: dict[int, frozenset[str]]
    owner: dict[int, str | None]


def ownership_of(placement: Placement) -> Ownership:
    """Afterwards every value has its fragments, and every leaf of the state and every carry has an owner or None."""
    solver = _Solver(placement)
    graph = placement.graph
    solver.block(graph.block)
    solver.settle(graph.block, graph.state_inputs, graph.state_outputs)
    return Ownership(solver.fragments, solver.owner)


def prefer(placement: Placement, candidates: frozenset[str]) -> str:
    """The fragment that computes what several could: one without replicas if there is one."""
    fragments = [f for f in placement.fragments if f.name in candidates]
    return min(fragments, key=lambda f: f.replicas > 1).name


class _Solver:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.raw: dict[int, Sources] = {}
        self.fragments: dict[int, frozenset[str]] = {}
        self.owner: dict[int, str | None] = {}

    def block(self, block: Block) -> None:
        """Compute the raw sources of every value in the block, with its inputs unresolved."""
        self.raw.update({value.id: frozenset([value.id]) for value in block.inputs})
        for node in block.nodes:
            if isinstance(node, Loop):
                self._loop(node)
                continue
            sources: Sources = frozenset().union(*(self.raw[v.id] for v in node.inputs))
            if isinstance(node, Call):
                sources = frozenset([self.placement.fragment_of(node)])
            self.raw.update({value.id: sources for value in node.outputs})

    def settle(self, block: Block, params: tuple[Value, ...], results: tuple[Value, ...]) -> None:
        """Resolve the block's inputs: state resolves to the fragments that write it, everything else to none."""
        writers: dict[int, frozenset[str]] = {value.id: frozenset() for value in block.inputs}
        while True:
            updated = {
                param.id: writers[param.id] | self._resolve(self.raw[result.id], writers)
                for param, result in zip(params, results, strict=True)
            }
            if all(writers[key] == value for key, value in updated.items()):
                break
            writers.update(updated)
        for param in params:
            self.owner[param.id] = prefer(self.placement, writers[param.id]) if writers[param.id] else None
        for value in (*block.inputs, *(v for node in block.nodes for v in node.outputs)):
            self.fragments[value.id] = self._resolve(self.raw[value.id], writers)

    def _loop(self, loop: Loop) -> None:
        self.block(loop.body)
        self.settle(loop.body, loop.carry_params, loop.carry_results)
        outside = {inner.id: self.raw[outer.id] for inner, outer in zip(loop.body.inputs, loop.inputs, strict=True)}
        reached = {param.id: self.raw[param.id] | self.raw[result.id] for param, result in self._carries(loop)}
        has_grown = True
        while has_grown:
            closed = {key: self._expand(tokens, reached) for key, tokens in reached.items()}
            has_grown, reached = closed != reached, closed
        finals = [(final, reached[param.id]) for final, param in zip(loop.finals, loop.carry_params, strict=True)]
        stacked = [
            (outer, self._expand(self.raw[inner.id], reached))
            for outer, inner in zip(loop.stacked, loop.slice_results, strict=True)
        ]
        for value, tokens in finals + stacked:
            inside = frozenset(t for t in tokens if isinstance(t, str))
            # If stages in the body write it, it comes from them; if only glue does, from the loop's inputs.
            self.raw[value.id] = inside or frozenset().union(*(outside[t] for t in tokens if isinstance(t, int)))

    def _carries(self, loop: Loop) -> list[tuple[Value, Value]]:
        return list(zip(loop.carry_params, loop.carry_results, strict=True))

    def _expand(self, tokens: Sources, reached: dict[int, Sources]) -> Sources:
        more = (reached[t] for t in tokens if isinstance(t, int) and t in reached)
        return tokens.union(*more)

    def _resolve(self, tokens: Sources, writers: dict[int, frozenset[str]]) -> frozenset[str]:
        names = frozenset(t for t in tokens if isinstance(t, str))
        return names.union(*(writers[t] for t in tokens if isinstance(t, int)))
