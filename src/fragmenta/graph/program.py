"""What a fragment runs: its own part of the graph, with the values that it sends and receives.

plan        ::= one program per fragment
program     ::= instructions
instruction ::= Run (a node) | Send | Recv | Repeat (a loop over instructions)
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator

from fragmenta.graph.exchange import Exchange
from fragmenta.graph.fragment import Delivery, Fragment
from fragmenta.graph.ir import Call, Glue, Graph, Loop, Value
from fragmenta.graph.layout import WHOLE, Layout


class Operator(enum.Enum):
    """How a value crosses fragments or replicas; derived from how replicas hold it, never annotated."""

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
    """One value that crosses fragments."""

    value: Value
    name: str
    producer: str
    consumer: str
    operator: Operator
    held: Layout
    """How replicas of the producer hold it; whole if there is one."""
    wanted: Layout
    """How replicas of the consumer want it; whole if there is one."""
    times: int
    """How often it crosses per iteration."""
    copies: int
    """How many whole copies arrive each time: one per consumer of a Broadcast, one per producer of a Reduce."""
    delivery: Delivery

    @property
    def bytes_per_iteration(self) -> int:
        """Bytes that arrive per iteration, over all replicas."""
        return self.value.bytes * self.times * self.copies

    @property
    def key(self) -> tuple[int, str]:
        """What tells this interface from all others."""
        return self.value.id, self.consumer


@dataclasses.dataclass(frozen=True)
class Collective:
    """Values that the replicas of one fragment exchange among themselves, all by the same operator."""

    operator: Operator
    values: int
    times: int
    """How often per iteration, at most."""
    bytes_per_iteration: int
    """Bytes that arrive per iteration, over all replicas."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Compute a node."""

    node: Glue | Call


@dataclasses.dataclass(frozen=True)
class Send:
    """Hand a value to another fragment."""

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


Instruction = Run | Send | Recv | Repeat


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything one fragment does in an iteration. `print(program)` lists it."""

    fragment: Fragment
    replicas: int
    """Replicas that run apart and exchange values through channels; 1 if they all run in one program."""
    parts: int
    """Into how many parts the trace at this fragment's size splits a value along the fragment's axis."""
    instructions: tuple[Instruction, ...]
    graph: Graph
    """The trace at this fragment's size."""
    state: tuple[int, ...]
    """The leaves of the state that it keeps, by position."""
    metrics: tuple[int, ...]
    """The metrics that it reports, by position."""
    layouts: dict[int, Layout] = dataclasses.field(repr=False)
    """Per value that replicas do not hold whole: how they hold it."""
    together: bool = False
    """The fragment's replicas talk to each other: they run as one program over all their devices, or, with processes of
    their own, meet in those parts of it that do."""

    def worker(self, replica: int) -> str:
        """What the worker of a replica is called."""
        return f"{self.fragment.name}[{replica}]" if self.replicas > 1 else self.fragment.name

    def layout(self, value: Value) -> Layout:
        """How its replicas hold a value."""
        return self.layouts.get(value.id, WHOLE)

    def collectives(self) -> list[Collective]:
        """What its replicas exchange among themselves."""
        return group_exchanges(self.exchanges(), self.fragment.replicas)

    def exchanges(self) -> list[Exchange]:
        """Every value that its replicas exchange among themselves, and how often per iteration."""
        return [e.repeated(times) for run, times in self.runs() if run.node.share for e in run.node.share.exchanges]

    def runs(self) -> list[tuple[Run, int]]:
        """Everything that it computes, and how often per iteration."""
        return list(_runs(self.instructions, 1))

    def __str__(self) -> str:
        from fragmenta.graph.show import show_program

        return show_program(self)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A policy applied to a graph: one program per fragment. `print(plan)` lists them."""

    policy: str
    graph: Graph
    programs: tuple[Program, ...]
    interfaces: tuple[Interface, ...]

    @property
    def arrivals(self) -> int:
        """Into how many parts, taken one by one as they come, an iteration falls; 1 if it is taken whole."""
        sources = {i.producer for i in self.interfaces if i.delivery.kind == "any"}
        return max((self[name].replicas for name in sources), default=1)

    @property
    def lanes(self) -> int:
        """How many replicas step environments on the host apart; those that run as one step all of them at once."""
        host = set(self.graph.host_stages)
        return next((p.replicas for p in self.programs if set(p.fragment.stages) & host), 1)

    @property
    def free_running(self) -> frozenset[str]:
        """Fragments that go through iterations at a pace of their own until the others are done."""
        return frozenset(i.producer for i in self.interfaces if i.delivery.kind == "any")

    @property
    def lags(self) -> bool:
        """Whether some fragment works with values older than the plain program would."""
        return not all(interface.delivery.waits for interface in self.interfaces)

    def __getitem__(self, fragment: str) -> Program:
        return next(program for program in self.programs if program.fragment.name == fragment)

    def __str__(self) -> str:
        from fragmenta.graph.show import show_plan

        return show_plan(self)


def sent(instructions: Iterable[Instruction]) -> Iterator[Interface]:
    """What a program hands to others."""
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            yield from sent(instruction.body)
        elif isinstance(instruction, Send):
            yield instruction.interface


def _runs(instructions: Iterable[Instruction], times: int) -> Iterator[tuple[Run, int]]:
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            yield from _runs(instruction.body, times * instruction.loop.length)
        elif isinstance(instruction, Run):
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
            # Every replica gets the whole of a sum or of all parts, and of what is reduced one result from each other.
            bytes_per_iteration=sum(e.bytes * e.times * (replicas if e.kind == "reduce" else 1) for e in group)
            * replicas,
        )
        for operator, group in groups.items()
    ]
