"""How the graph looks from inside each fragment: at which size it is traced, and what its replicas share."""

import dataclasses

from fragmenta.coordinator.place import Placement
from fragmenta.coordinator.spread import Spread, env_axis, makes_shared, spread_of, spread_of_constant
from fragmenta.errors import ConfigError
from fragmenta.graph import Block, Call, Fragment, Glue, Graph, Loop, Node, Value


@dataclasses.dataclass(frozen=True)
class View:
    """The graph at one fragment's size. `replicas` counts those that run apart; in one program they count as one.

    `parts` says into how many parts a value falls at that size.
    """

    fragment: Fragment
    graph: Graph
    replicas: int
    parts: int
    together: bool
    nodes: dict[int, Node]
    spread: dict[int, Spread]
    axes: dict[int, int]
    marked: dict[int, str]
    """Values that are to be reduced where they leave the replicas: `mean`, `sum` or `gather`."""
    elsewhere: frozenset[int]
    """Glue that a replica cannot compute from its part, so it is computed outside and received."""


def view(placement: Placement, fragment: Fragment, together: bool, sources: dict[int, frozenset[str]]) -> View:
    """The view of a fragment. Afterwards every value of the graph has a spread, and a dimension where it is split."""
    wide = placement.graph
    axis, count = fragment.axis, fragment.replicas
    feeders = [f for f in placement.fragments if fragment.delivery_from(f.name).kind == "any"]
    if count == 1 and not feeders:
        return View(fragment, wide, 1, 1, False, _index(wide.block), {}, {}, {}, frozenset())
    if feeders:
        # Takes one replica's part at a time, as if there were no other environments.
        axis, count = feeders[0].axis, feeders[0].replicas
    assert axis is not None
    sizes = wide.sizes | {axis: wide.sizes[axis] // count}
    narrow = wide.retrace(sizes, (axis, count) if together else None, wide.opened)
    nodes = _index(narrow.block)
    _check_aligned(wide, narrow, nodes)
    values = {value.id: value for value in _values(narrow.block)}
    found = {value.id: env_axis(value.shape, values[value.id].shape) for value in _values(wide.block)}
    axes = {value: dimension for value, dimension in found.items() if dimension is not None}
    if feeders:
        return View(fragment, narrow, 1, count, False, nodes, {}, axes, {}, frozenset())
    single = frozenset(f.name for f in placement.fragments if f.replicas == 1)
    walk = _Walk(placement, fragment, together, nodes, sources, single)
    inputs = zip(wide.block.inputs, narrow.block.inputs, strict=True)
    walk.spread.update({a.id: _by_shape(a, b) for a, b in inputs})
    walk.block(wide.block)
    return View(
        fragment=fragment,
        graph=narrow,
        replicas=1 if together and not placement.apart else count,
        parts=count,
        together=together,
        nodes=nodes,
        spread=walk.spread,
        axes=axes,
        marked=walk.marked,
        elsewhere=frozenset(walk.elsewhere),
    )


class _Walk:
    """One pass over the graph, as one fragment's replica would compute it."""

    def __init__(
        self,
        placement: Placement,
        fragment: Fragment,
        together: bool,
        nodes: dict[int, Node],
        sources: dict[int, frozenset[str]],
        single: frozenset[str],
    ) -> None:
        self.placement, self.fragment, self.together, self.nodes = placement, fragment, together, nodes
        self.sources, self.single = sources, single
        self.spread: dict[int, Spread] = {}
        self.marked: dict[int, str] = {}
        self.elsewhere: set[int] = set()

    def block(self, block: Block) -> None:
        """Find the spread of every value that the block makes, from that of its inputs."""
        for node in block.nodes:
            twin = self.nodes[node.id]
            if isinstance(node, Loop) and isinstance(twin, Loop):
                self._loop(node)
            elif isinstance(node, Glue) and isinstance(twin, Glue):
                self._glue(node, twin)
            elif isinstance(node, Call) and isinstance(twin, Call):
                self._call(node, twin)

    def _glue(self, node: Glue, twin: Glue) -> None:
        if node.label == "constant" and not node.inputs:
            results = [spread_of_constant(node.origin, twin.origin)]
        elif node.mark and node.mark.applies(self.fragment.axis) and not self.together:
            (value,), results = node.inputs, [Spread.PARTIAL]
            along_the_parts = env_axis(value.shape, twin.inputs[0].shape) == node.mark.axis
            if makes_shared(node.mark.op, self.spread[value.id], along_the_parts):
                self.marked[node.outputs[0].id] = node.mark.op
        else:
            results = spread_of(node.origin, twin.origin, [self.spread[v.id] for v in node.inputs])
        # From what a replica alone has, nobody else can compute it.
        private = any(self.spread[v.id] == Spread.PARTIAL and v.id not in self.marked for v in node.inputs)
        if Spread.PARTIAL in results and not private and self.sources[node.outputs[0].id] & self.single:
            self.elsewhere.add(node.id)
            results = [_by_shape(a, b) for a, b in zip(node.outputs, twin.outputs, strict=True)]
        self._write(node.outputs, results)

    def _call(self, node: Call, twin: Call) -> None:
        if self.placement.fragment_of(node) == self.fragment.name:
            results = spread_of(node.origin, twin.origin, [self.spread[v.id] for v in node.inputs])
        else:
            results = [_by_shape(a, b) for a, b in zip(node.outputs, twin.outputs, strict=True)]
        self._write(node.outputs, results)

    def _loop(self, node: Loop) -> None:
        for inside, outside in zip(node.body.inputs, node.inputs, strict=True):
            self.spread[inside.id] = self.spread[outside.id]
        while True:
            self.block(node.body)
            before = [self.spread[v.id] for v in node.carry_params]
            after = [self.spread[v.id] for v in node.carry_results]
            joined = [max(pair) for pair in zip(before, after, strict=True)]
            self._write(node.carry_params, joined)
            if joined == before:
                break
        self._write(node.finals, joined)
        for stacked, result in zip(node.stacked, node.slice_results, strict=True):
            self.spread[stacked.id] = self.spread[result.id]
            if result.id in self.marked:
                self.marked[stacked.id] = self.marked[result.id]

    def _write(self, values: tuple[Value, ...], spreads: list[Spread]) -> None:
        self.spread.update({value.id: spread for value, spread in zip(values, spreads, strict=True)})


def _by_shape(wide: Value, narrow: Value) -> Spread:
    """The spread of a value that arrives whole and correct from outside."""
    if wide.shape == narrow.shape:
        return Spread.SHARED
    return Spread.PARTIAL if env_axis(wide.shape, narrow.shape) is None else Spread.SPLIT


def _index(block: Block) -> dict[int, Node]:
    return {node.id: node for node in block.walk()}


def _values(block: Block) -> list[Value]:
    found = list(block.inputs)
    for node in block.nodes:
        found += node.outputs
        if isinstance(node, Loop):
            found += _values(node.body)
    return found


def _check_aligned(wide: Graph, narrow: Graph, nodes: dict[int, Node]) -> None:
    """Both traces must have the same nodes; only sizes may differ."""

    def shape(node: Node) -> tuple[object, ...]:
        kind = node.length if isinstance(node, Loop) else node.stage if isinstance(node, Call) else bool(node.mark)
        return type(node), kind, len(node.inputs), tuple(v.id for v in node.outputs)

    same = len(nodes) == sum(1 for _ in wide.block.walk())
    if not same or any(n.id not in nodes or shape(n) != shape(nodes[n.id]) for n in wide.block.walk()):
        raise ConfigError(
            f"iterate does other things with {_sizes(narrow)} than with {_sizes(wide)}, so it cannot "
            f"be replicated: let only shapes depend on these numbers"
        )


def _sizes(graph: Graph) -> str:
    agents = f" and {graph.sizes['agents']} agents" if graph.sizes["agents"] > 1 else ""
    return f"{graph.sizes['envs']} environments{agents}"
