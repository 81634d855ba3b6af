"""What a fragment runs: its own part of the graph, with the values that it sends and receives.

plan        ::= one program per fragment
program     ::= instructions
instruction ::= Run (a node) | Send | Recv | Repeat (a loop over instructions)
"""

import dataclasses
import enum

from fragmenta.graph.fragment import Fragment
from fragmenta.graph.ir import Call, Glue, Graph, Loop, Value


class Operator(enum.Enum):
    """How a value crosses from one fragment to another; derived from replicas and shapes, never annotated."""

    SEND = "Send/Recv"
    BROADCAST = "Broadcast"
    SCATTER = "Scatter"
    GATHER = "Gather"
    REDUCE = "Reduce"


@dataclasses.dataclass(frozen=True)
class Interface:
    """One value that crosses fragments."""

    value: Value
    name: str
    producer: str
    consumer: str
    operator: Operator
    axis: int | None
    """The dimension along which replicas hold parts."""
    reduction: str | None
    """`mean` or `sum`, for a Reduce."""
    times: int
    """How often it crosses per iteration."""
    copies: int
    """How many whole copies arrive each time: one per consumer of a Broadcast, one per producer of a Reduce."""

    @property
    def bytes_per_iteration(self) -> int:
        """Bytes that arrive per iteration, over all replicas."""
        return self.value.bytes * self.times * self.copies

    @property
    def key(self) -> tuple[int, str]:
        """What tells this interface from all others."""
        return self.value.id, self.consumer


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
    """Replicas that run apart and exchange values through channels; 1 if they run as one program."""
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
    """The fragment's replicas talk to each other, so they run as one program over all their devices."""

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

    def __getitem__(self, fragment: str) -> Program:
        return next(program for program in self.programs if program.fragment.name == fragment)

    def __str__(self) -> str:
        from fragmenta.graph.show import show_plan

        return show_plan(self)
