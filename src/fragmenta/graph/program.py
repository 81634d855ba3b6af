"""What a fragment runs: its own part of the graph, with the values that it sends and receives.

plan        ::= one program per fragment
program     ::= instructions
instruction ::= Run (a node) | Send | Recv | Repeat (a loop over instructions)
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator

from fragmenta.graph.fragment import Delivery, Fragment
from fragmenta.graph.ir import Call, Glue, Graph, Loop, Mark, Value


class Operator(enum.Enum):
    """How a value crosses fragments or replicas; derived from replicas, shapes and marks, never annotated."""

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
    axis: int | None
    """The dimension along which replicas hold parts; for an AllToAll, those of the producer."""
    reduction: str | None
    """`mean` or `sum`, for a Reduce."""
    times: int
    """How often it crosses per iteration."""
    copies: int
    """How many whole copies arrive each time: one per consumer of a Broadcast, one per producer of a Reduce."""
    delivery: Delivery
    parts_axis: int | None = None
    """For an AllToAll: the dimension along which replicas of the consumer hold parts; None if each holds the whole."""

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
    """Values on which the replicas of one fragment agree among themselves, all by the same operator."""

    operator: Operator
    reduction: str | None
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
    axes: dict[int, int] = dataclasses.field(repr=False)
    """Per value that replicas hold in parts: the dimension."""
    together: bool = False
    """The fragment's replicas talk to each other: they run as one program over all their devices, or, with processes of
    their own, meet in those parts of it that do."""

    def worker(self, replica: int) -> str:
        """What the worker of a replica is called."""
        return f"{self.fragment.name}[{replica}]" if self.replicas > 1 else self.fragment.name

    def collectives(self) -> list[Collective]:
        """What its replicas exchange among themselves."""
        nodes = _nodes(self.instructions, 1)
        marks = [(mark, mark.times * times) for node, times in nodes for mark in self.marks_of(node)]
        return group_marks(marks, self.fragment.replicas)

    def marks_of(self, node: Glue | Call) -> tuple[Mark, ...]:
        """The marks of a node on which the replicas of this fragment meet."""
        if not self.together:
            return ()
        marks = node.marks if isinstance(node, Call) else (node.mark,) if node.mark else ()
        return tuple(mark for mark in marks if mark.applies(self.fragment.axis))

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


def _nodes(instructions: Iterable[Instruction], times: int) -> Iterator[tuple[Glue | Call, int]]:
    """Every node that a program runs, and how often per iteration."""
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            yield from _nodes(instruction.body, times * instruction.loop.length)
        elif isinstance(instruction, Run):
            yield instruction.node, times


def group_marks(marks: Iterable[tuple[Mark, int]], replicas: int) -> list[Collective]:
    """One collective per operation, from marks and how often each is exchanged."""
    groups: dict[str, list[tuple[Mark, int]]] = {}
    for mark, times in marks:
        groups.setdefault(mark.op, []).append((mark, times))
    return [
        Collective(
            operator=Operator.ALL_GATHER if op == "gather" else Operator.ALL_REDUCE,
            reduction=None if op == "gather" else op,
            values=len(group),
            times=max(times for _, times in group),
            # Every replica gets the whole; of a gather, a replica has given one part of it.
            bytes_per_iteration=sum(m.value.bytes * n for m, n in group) * replicas ** (2 if op == "gather" else 1),
        )
        for op, group in groups.items()
    ]
