"""The fragmented dataflow graph: one traced training iteration.

    graph ::= block with the state's leaves as inputs, the next state's leaves and the metrics as outputs
    block ::= inputs, nodes in order, outputs
    node  ::= Call (a stage) | Loop (a scan that holds stages) | Glue (any other operation)

Two traces of one loop at different sizes have equal ids, so a node of one can stand in for a node of the other.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

Apply = Callable[..., list[Any]]
"""Takes the arrays of a node's inputs and returns those of its outputs."""


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
class Mark:
    """A value that is to agree among replicas: among all of them, or among those along one axis."""

    op: str
    """`mean`, `sum` or `gather`."""
    over: str | None
    axis: int
    """The dimension along which a gather joins."""
    value: Value
    times: int = 1
    """How often it is exchanged each time its node runs."""

    def applies(self, axis: str | None) -> bool:
        """Whether replicas along that axis take part."""
        return self.over in (None, axis)


@dataclasses.dataclass(frozen=True)
class Glue:
    """An operation that belongs to no stage; any fragment may compute its own copy."""

    id: int
    label: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    apply: Apply = dataclasses.field(repr=False)
    mark: Mark | None = None
    origin: Any = dataclasses.field(default=None, repr=False)
    """The traced equation, for the analysis of what replicas share."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A stage at work. `inner` names the stages nested in it, `holds` every stage that it takes along."""

    id: int
    stage: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    apply: Apply = dataclasses.field(repr=False)
    inner: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    has_effects: bool = False
    host: Apply | None = dataclasses.field(default=None, repr=False)
    """The same with arrays of numpy, for a stage that runs on the host, outside compiled programs."""
    origin: Any = dataclasses.field(default=None, repr=False)


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
        """All values that the loop takes from outside."""
        return self.constants + self.carries + self.sequences

    @property
    def outputs(self) -> tuple[Value, ...]:
        """All values that the loop gives to the outside."""
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
        """The carries as the body leaves them."""
        return self.body.outputs[: len(self.carries)]

    @property
    def slice_results(self) -> tuple[Value, ...]:
        """What the body adds to each stacked output."""
        return self.body.outputs[len(self.carries) :]


Node = Glue | Call | Loop


@dataclasses.dataclass(frozen=True)
class Block:
    """A straight run of nodes."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]

    def walk(self) -> Iterator[Node]:
        """All nodes, those within loops included, in program order."""
        for node in self.nodes:
            yield node
            if isinstance(node, Loop):
                yield from node.body.walk()


@dataclasses.dataclass(frozen=True)
class Graph:
    """One training iteration, traced. `print(graph)` lists it."""

    block: Block
    state_names: tuple[str, ...]
    metric_names: tuple[str, ...]
    stages: tuple[str, ...]
    """Every stage in the loop, those nested in others included."""
    top_stages: tuple[str, ...]
    """The stages that are not nested in another one: what a policy gets to place."""
    sizes: dict[str, int]
    """How many environments and how many agents it was traced with."""
    opened: frozenset[str]
    """Stages whose inner stages stand in their place."""
    names: dict[int, str] = dataclasses.field(repr=False)
    """What the algorithm calls a value, where JAX knows."""
    retrace: "Callable[[dict[str, int], tuple[str, int] | None, frozenset[str]], Graph]" = dataclasses.field(repr=False)
    """Trace again at other sizes, as one of several replicas along an axis that run as one, with some stages opened."""

    @property
    def host_stages(self) -> tuple[str, ...]:
        """The stages that run on the host, outside compiled programs."""
        calls = (node for node in self.block.walk() if isinstance(node, Call))
        return tuple(dict.fromkeys(call.stage for call in calls if call.host))

    @property
    def state_inputs(self) -> tuple[Value, ...]:
        """The leaves of the state at the start of an iteration."""
        return self.block.inputs

    @property
    def state_outputs(self) -> tuple[Value, ...]:
        """The same leaves at its end."""
        return self.block.outputs[: len(self.state_names)]

    @property
    def metrics(self) -> tuple[Value, ...]:
        """The metrics of the iteration."""
        return self.block.outputs[len(self.state_names) :]

    def __str__(self) -> str:
        from fragmenta.graph.show import show_graph

        return show_graph(self)
