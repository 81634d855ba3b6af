"""The fragmented dataflow graph: one traced training iteration.

    graph ::= block with the state's leaves as inputs, the next state's leaves and the metrics as outputs
    block ::= inputs, nodes in order, outputs
    node  ::= Call (a stage) | Loop (a scan that contains stages) | Glue (any other operation)

A fragment's own graph has nodes with the same ids, at the size of one replica's parts.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from fragmenta.drawing.html_pieces import listing
from fragmenta.graph.exchange import Exchange, Work
from fragmenta.graph.layout import Split

Apply = Callable[..., list[Any]]
"""From the arrays of a node's inputs to those of its outputs."""


@dataclasses.dataclass(frozen=True)
class Value:
    """An array that exists while an iteration runs."""

    id: int
    shape: tuple[int, ...]
    dtype: Any = dataclasses.field(compare=False)

    @property
    def bytes(self) -> int:
        """Size in memory."""
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return size

    def __str__(self) -> str:
        name = {"float": "f", "uint": "u", "int": "i", "bool": "bool", "bfloat": "bf"}
        text = str(self.dtype)
        kind = text.rstrip("0123456789")
        return f"{name[kind] + text[len(kind) :] if kind in name else text}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class Share:
    """A replica's share of a node: its work, and what it exchanges with the other replicas.

    The first argument of the node's `apply` is then the replica.
    """

    exchanges: tuple[Exchange, ...] = ()
    work: Work = dataclasses.field(default_factory=Work)
    uses_index: bool = False
    """Whether it depends on the index of the replica."""


@dataclasses.dataclass(frozen=True)
class Glue:
    """An operation that belongs to no stage; any fragment may compute its own copy."""

    id: int
    label: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    apply: Apply = dataclasses.field(repr=False)
    origin: Any = dataclasses.field(default=None, repr=False)
    """The traced equation or the constant, from which the replicas' shares are derived."""
    share: Share | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a stage. `inner` names the stages nested in it, `holds` the stages that are placed with it."""

    id: int
    stage: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    apply: Apply = dataclasses.field(repr=False)
    inner: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    has_effects: bool = False
    host: Apply | None = dataclasses.field(default=None, repr=False)
    """The same on NumPy arrays, for a stage that runs on the host, outside compiled programs."""
    per_environment: bool = False
    """On the host: whether it treats environments independently, so that each replica can run it on its part."""
    origin: Any = dataclasses.field(default=None, repr=False)
    share: Share | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class Loop:
    """A scan. Its body's inputs are constants, carries and slices of `sequences`; its outputs carries and slices."""

    id: int
    length: int
    reverse: bool
    constants: tuple[Value, ...]
    carries: tuple[Value, ...]
    sequences: tuple[Value, ...]
    finals: tuple[Value, ...]
    stacked: tuple[Value, ...]
    body: "Block"

    @property
    def inputs(self) -> tuple[Value, ...]:
        """All values that enter the loop."""
        return self.constants + self.carries + self.sequences

    @property
    def outputs(self) -> tuple[Value, ...]:
        """All values that leave the loop."""
        return self.finals + self.stacked

    @property
    def carry_params(self) -> tuple[Value, ...]:
        """The carries as the body sees them."""
        start = len(self.constants)
        return self.body.inputs[start : start + len(self.carries)]

    @property
    def slice_params(self) -> tuple[Value, ...]:
        """The current slice of each sequence as the body sees it."""
        return self.body.inputs[len(self.constants) + len(self.carries) :]

    @property
    def carry_results(self) -> tuple[Value, ...]:
        """The carries as the body returns them."""
        return self.body.outputs[: len(self.carries)]

    @property
    def slice_results(self) -> tuple[Value, ...]:
        """The slices that the body contributes to each stacked output."""
        return self.body.outputs[len(self.carries) :]


Node = Glue | Call | Loop


@dataclasses.dataclass(frozen=True)
class Block:
    """A sequence of nodes without control flow, other than loops."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]

    def walk(self) -> Iterator[Node]:
        """All nodes, those within loops included, in program order."""
        for node in self.nodes:
            yield node
            if isinstance(node, Loop):
                yield from node.body.walk()


@dataclasses.dataclass(frozen=True, repr=False)
class Graph:
    """One training iteration, traced. It shows itself as a listing."""

    block: Block
    steps: int | None
    """Steps of environments in an iteration, over all of them; None if that is known only at run time."""
    state_names: tuple[str, ...]
    rebuildable: frozenset[int]
    """The state leaves, by position, that fill anew as training goes on, such as those of a replay."""
    metric_names: tuple[str, ...]
    stages: tuple[str, ...]
    """All stages, including those nested in others."""
    top_stages: tuple[str, ...]
    """The stages that are not nested in another: those that a distribution policy places."""
    sizes: dict[str, int]
    """The length of each axis along which fragments may be replicated."""
    nouns: dict[str, str]
    """The plural noun for what lies along each axis, for messages."""
    opened: frozenset[str]
    """Stages that are replaced by their inner stages."""
    names: dict[int, str] = dataclasses.field(repr=False)
    """The algorithm's names of values, where JAX knows them."""
    retrace: "Callable[[dict[str, int], frozenset[str]], Graph]" = dataclasses.field(repr=False)
    """Traces again at other sizes, with some stages opened."""
    splits: "Callable[[str], tuple[Split | None, ...]]" = dataclasses.field(repr=False)
    """For an axis: the dimension of each state leaf that grows with it, if any."""
    hidden: frozenset[str]
    """Axes that cannot be tracked from the state to every value along them."""
    findings: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """What passes found out about it alone, which holds for every plan; each keeps its own under a key of its own."""

    @property
    def host_stages(self) -> tuple[str, ...]:
        """The stages that run on the host, outside compiled programs."""
        calls = (node for node in self.block.walk() if isinstance(node, Call))
        return tuple(dict.fromkeys(call.stage for call in calls if call.host))

    @property
    def rollout_stages(self) -> tuple[str, ...]:
        """The stages that are called in the same loop as `step`."""
        bodies = [node.body for node in self.block.walk() if isinstance(node, Loop)]
        for block in (*reversed(bodies), self.block):
            names = [name for node in block.nodes if isinstance(node, Call) for name in node.holds]
            if "step" in names:
                return tuple(dict.fromkeys(names))
        return ()

    @property
    def state_inputs(self) -> tuple[Value, ...]:
        """The state leaves at the start of an iteration."""
        return self.block.inputs

    @property
    def state_outputs(self) -> tuple[Value, ...]:
        """The same leaves at its end."""
        return self.block.outputs[: len(self.state_names)]

    @property
    def metrics(self) -> tuple[Value, ...]:
        """The metrics of the iteration."""
        return self.block.outputs[len(self.state_names) :]

    def __repr__(self) -> str:
        from fragmenta.graph.show import show_graph

        return show_graph(self)

    def _repr_html_(self) -> str:
        return listing(repr(self))
