"""The graph as each fragment sees it: which part of every value and of every node a replica has."""

import dataclasses

from fragmenta.coordinator.partition.analyse import Partitioner
from fragmenta.coordinator.place import Placement
from fragmenta.coordinator.share import Place, Walk
from fragmenta.graph import Fragment, Glue, Graph, Node, Value
from fragmenta.graph.layout import WHOLE, Layout


@dataclasses.dataclass(frozen=True)
class View:
    """The graph as a replica of one fragment sees it. `replicas` counts those that run separately: replicas in one
    program count as one. `parts` is the number of parts that a value is split into."""

    fragment: Fragment
    graph: Graph
    replicas: int
    parts: int
    together: bool
    nodes: dict[int, Node] = dataclasses.field(default_factory=dict)
    layouts: dict[int, Layout] = dataclasses.field(default_factory=dict)
    conversions: dict[Place, Glue] = dataclasses.field(default_factory=dict)
    """Layout conversions where a node, a loop or the iteration begins or ends."""
    external_glue: frozenset[int] = frozenset()
    """Glue for which replicas would have to exchange values, so another fragment computes it and sends the result."""
    exchanging_glue: frozenset[int] = frozenset()
    """Glue for which replicas would have to exchange values, either for itself or for its inputs."""

    def layout(self, value: Value) -> Layout:
        """How a replica holds a value."""
        return self.layouts.get(value.id, WHOLE)


def whole_view(placement: Placement, fragment: Fragment) -> View:
    """The view of a fragment that holds every value whole."""
    nodes = {node.id: node for node in placement.graph.block.walk()}
    return View(fragment, placement.graph, fragment.replicas, fragment.replicas, False, nodes)


def view(
    placement: Placement,
    fragment: Fragment,
    together: bool,
    combined: frozenset[int],
    sources: dict[int, frozenset[str]],
    partitioner: Partitioner,
) -> View:
    """The view of a fragment whose replicas hold parts.

    Afterwards every value of the graph has a layout, every node that the fragment may run takes and returns values in
    these layouts, and the exchanges for that are known. Values in `combined` are not left as partial sums.
    """
    count = fragment.replicas
    single = frozenset(f.name for f in placement.fragments if f.replicas == 1)
    while True:
        walk = Walk(placement, fragment, together, combined, sources, single, partitioner)
        graph = walk.graph()
        if walk.combined == combined:
            break
        combined = frozenset(walk.combined)
    return View(
        fragment=fragment,
        graph=graph,
        replicas=1 if together and not placement.apart else count,
        parts=count,
        together=together,
        nodes=walk.nodes,
        layouts={key: layout for key, layout in walk.layouts.items() if layout != WHOLE},
        conversions=walk.conversions,
        external_glue=frozenset(walk.external_glue),
        exchanging_glue=frozenset(walk.exchanging_glue),
    )
