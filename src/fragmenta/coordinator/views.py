"""How the graph looks from inside each fragment: what a replica holds of every value and does of every node."""

import dataclasses

from fragmenta.coordinator.partition.analyse import Partitioner
from fragmenta.coordinator.place import Placement
from fragmenta.coordinator.share import Place, Walk
from fragmenta.graph import Fragment, Glue, Graph, Node, Value
from fragmenta.graph.layout import WHOLE, Layout


@dataclasses.dataclass(frozen=True)
class View:
    """The graph as one fragment's replica sees it. `replicas` counts those that run apart; in one program they count as
    one. `parts` says into how many parts a value falls."""

    fragment: Fragment
    graph: Graph
    replicas: int
    parts: int
    together: bool
    nodes: dict[int, Node] = dataclasses.field(default_factory=dict)
    layouts: dict[int, Layout] = dataclasses.field(default_factory=dict)
    conversions: dict[Place, Glue] = dataclasses.field(default_factory=dict)
    """What has to be converted where a loop or the iteration begins or ends."""
    elsewhere: frozenset[int] = frozenset()
    """Glue for which replicas would have to meet, so it is computed outside and received."""
    meeting: frozenset[int] = frozenset()
    """Glue for which replicas would have to meet, or for what it takes."""

    def layout(self, value: Value) -> Layout:
        """How a replica holds a value."""
        return self.layouts.get(value.id, WHOLE)


def whole_view(placement: Placement, fragment: Fragment) -> View:
    """The view of a fragment that sees all of everything."""
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
    """The view of a fragment with replicas that hold parts.

    Afterwards every value of the graph has a layout, every node that the fragment may run takes and gives values in
    them, and what it takes for that from other replicas is known. Sums in `combined` are not left in summands.
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
        elsewhere=frozenset(walk.elsewhere),
        meeting=frozenset(walk.meeting),
    )
