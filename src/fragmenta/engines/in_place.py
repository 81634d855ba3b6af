"""Large leaves that fill anew as training goes on (`Algorithm.rebuildable`: a replay): they stay where they are.

Copying gigabytes again and again would take more time and memory than training. In a state to begin with, such a leaf
may be only its shape (`jax.ShapeDtypeStruct`): then every worker makes its part itself, as it is before the first
iteration.
"""

from fragmenta.graph import Graph

IN_PLACE_BYTES = 256 << 20
"""Up to how many bytes rebuildable leaves, all together, are treated like all others."""


def in_place(graph: Graph) -> frozenset[int]:
    """The leaves that stay where they are: the rebuildable ones, if they are large."""
    size = sum(graph.state_inputs[i].bytes for i in graph.rebuildable)
    return graph.rebuildable if size > IN_PLACE_BYTES else frozenset()
