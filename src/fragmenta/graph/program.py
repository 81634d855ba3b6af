"""Programs: a fragment's part of the graph, with the values that it sends and receives.

plan        ::= one program per fragment
program     ::= instructions
instruction ::= Compute (a node) | Send | Recv | Repeat (a loop over instructions)
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator

from fragmenta.drawing.flowchart_svg import diagram
from fragmenta.drawing.html_pieces import listing
from fragmenta.graph.exchange import Exchange
from fragmenta.graph.fragment import Delivery, Fragment
from fragmenta.graph.ir import Call, Glue, Graph, Loop, Value
from fragmenta.graph.layout import WHOLE, Layout


class Operator(enum.Enum):
    """How a value crosses between fragments or replicas; derived from its layouts, never annotated."""

    SEND = "Send/Recv"
    BROADCAST = "Broadcast"
    SCATTER = "Scatter"
    GATHER = "Gather"
    REDUCE = "Reduce"
    ALL_TO_ALL = "AllToAll"
    ALL_REDUCE = "AllReduce"
    ALL_GATHER = "AllGather"


@dataclasses.dataclass(frozen=True)
class Interface:
    """A value that crosses between fragments."""

    value: Value
    name: str
    producer: str
    consumer: str
    operator: Operator
    producer_layout: Layout
    """The layout on the replicas of the producer; whole if there is one replica."""
    consumer_layout: Layout
    """The layout on the replicas of the consumer; whole if there is one replica."""
    times: int
    """How often the value crosses per iteration."""
    copies: int
    """How many whole copies arrive each time: one per consumer of a Broadcast, one per producer of a Reduce."""
    delivery: Delivery

    @property
    def bytes_per_iteration(self) -> int:
        """Bytes that arrive per iteration, over all replicas."""
        return self.value.bytes * self.times * self.copies

    @property
    def key(self) -> tuple[int, str]:
        """Identifies this interface within the plan."""
        return self.value.id, self.consumer


@dataclasses.dataclass(frozen=True)
class Collective:
    """All values that the replicas of a fragment exchange by one operator."""

    operator: Operator
    values: int
    times: int
    """How often per iteration, at most."""
    bytes_per_iteration: int
    """Bytes that arrive per iteration, over all replicas."""


@dataclasses.dataclass(frozen=True)
class Compute:
    """Compute a node."""

    node: Glue | Call


@dataclasses.dataclass(frozen=True)
class Send:
    """Send a value to another fragment."""

    interface: Interface


@dataclasses.dataclass(frozen=True)
class Recv:
    """Wait for a value from another fragment."""

    interface: Interface


@dataclasses.dataclass(frozen=True)
class Repeat:
    """This fragment's share of a loop: the carries, sequences and stacked outputs (by position) that it keeps."""

    loop: Loop
    body: "tuple[Instruction, ...]"
    carries: tuple[int, ...]
    sequences: tuple[int, ...]
    stacked: tuple[int, ...]


Instruction = Compute | Send | Recv | Repeat


@dataclasses.dataclass(frozen=True)
class Program:
    """The program of one fragment for an iteration. `print(program)` lists it."""

    fragment: Fragment
    replicas: int
    """Replicas that run separately and exchange values through channels; 1 if all run as one program."""
    parts: int
    """The number of parts that a value is split into along the fragment's axis."""
    instructions: tuple[Instruction, ...]
    graph: Graph
    """The graph at the size of one replica's parts."""
    state: tuple[int, ...]
    """Positions of the state leaves that it keeps."""
    metrics: tuple[int, ...]
    """Positions of the metrics that it reports."""
    layouts: dict[int, Layout] = dataclasses.field(repr=False)
    """The layouts of values that replicas do not hold whole."""
    together: bool = False
    """Whether the replicas exchange values: they run as one program over all their devices, or, in separate processes,
    run those parts of it that exchange values as one."""

    def worker(self, replica: int) -> str:
        """The name of a replica's worker."""
        return f"{self.fragment.name}[{replica}]" if self.replicas > 1 else self.fragment.name

    def layout(self, value: Value) -> Layout:
        """The layout of a value on its replicas."""
        return self.layouts.get(value.id, WHOLE)

    def collectives(self) -> list[Collective]:
        """The exchanges among its replicas, grouped by operator."""
        return group_exchanges(self.exchanges(), self.fragment.replicas)

    def exchanges(self) -> list[Exchange]:
        """Every exchange among its replicas, with its count per iteration."""
        return [e.repeated(times) for run, times in self.runs() if run.node.share for e in run.node.share.exchanges]

    def runs(self) -> list[tuple[Compute, int]]:
        """Every node that it computes, and how often per iteration."""
        return list(_runs(self.instructions, 1))

    def __str__(self) -> str:
        from fragmenta.graph.show import show_program

        return show_program(self)


@dataclasses.dataclass(frozen=True, repr=False)
class Plan:
    """A distribution policy applied to a graph: one program per fragment. It shows itself as a listing, and in a
    notebook as a diagram, too."""

    policy: str
    graph: Graph
    programs: tuple[Program, ...]
    interfaces: tuple[Interface, ...]

    @property
    def arrivals(self) -> int:
        """The number of separate arrivals that make up an iteration; 1 under a synchronous distribution policy."""
        sources = {i.producer for i in self.interfaces if i.delivery.kind == "any"}
        return max((self[name].replicas for name in sources), default=1)

    @property
    def lanes(self) -> int:
        """How many replicas step host environments separately; replicas that run as one program count as one."""
        host = set(self.graph.host_stages)
        return next((p.replicas for p in self.programs if set(p.fragment.stages) & host), 1)

    @property
    def free_running(self) -> frozenset[str]:
        """Fragments whose workers are free-running."""
        return frozenset(i.producer for i in self.interfaces if i.delivery.kind == "any")

    @property
    def feeder(self) -> str | None:
        """The free-running fragment whose replicas the learner takes values from; None if there is none."""
        any_taken = [i for i in self.interfaces if i.delivery.kind == "any"]
        return next((i.producer for i in any_taken if i.consumer not in self.free_running), None)

    @property
    def lags(self) -> bool:
        """Whether some fragment uses older values than the plain program would."""
        return not all(interface.delivery.waits for interface in self.interfaces)

    def __getitem__(self, fragment: str) -> Program:
        return next(program for program in self.programs if program.fragment.name == fragment)

    def __repr__(self) -> str:
        from fragmenta.graph.show import show_plan

        return show_plan(self)

    def _repr_html_(self) -> str:
        from fragmenta.graph.show import to_mermaid

        return diagram(to_mermaid(self)) + listing(repr(self))


def sent(instructions: Iterable[Instruction]) -> Iterator[Interface]:
    """The interfaces through which a program sends."""
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            yield from sent(instruction.body)
        elif isinstance(instruction, Send):
            yield instruction.interface


def _runs(instructions: Iterable[Instruction], times: int) -> Iterator[tuple[Compute, int]]:
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            yield from _runs(instruction.body, times * instruction.loop.length)
        elif isinstance(instruction, Compute):
            yield instruction, times


def group_exchanges(exchanges: Iterable[Exchange], replicas: int) -> list[Collective]:
    """One collective per operator."""
    groups: dict[Operator, list[Exchange]] = {}
    for exchange in exchanges:
        groups.setdefault(Operator.ALL_REDUCE if exchange.kind == "sum" else Operator.ALL_GATHER, []).append(exchange)
    return [
        Collective(
            operator=operator,
            values=len(group),
            times=max(e.times for e in group),
            # Every replica receives a whole sum or gathered value; of a reduction, one result from each replica.
            bytes_per_iteration=sum(e.bytes * e.times * (replicas if e.kind == "reduce" else 1) for e in group)
            * replicas,
        )
        for operator, group in groups.items()
    ]
