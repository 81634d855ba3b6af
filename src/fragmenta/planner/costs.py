"""What the steps of workers cost: what the profile knows and the simulator needs."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from fragmenta.graph import Program
from fragmenta.worker.steps import Host, Schedule, Segment

INTERPRETER = "interpreter"
"""What a computation occupies, if other workers are threads of the same process: the share of its time with which it
has the lock of the interpreter of Python."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a computation costs where nothing else runs."""

    seconds: float
    cores: float = 1.0
    """Cores that are busy while it runs, on average; on an accelerator, the share of it."""
    spread: float = 0.0
    """The standard deviation of `seconds` from one time to the next, as a share of it."""
    interpreter: float = 0.0
    """The share of the time in which it holds Python's global lock, so that other threads of its process wait."""
    memory: int | None = None
    """Bytes that it needs besides its inputs, as XLA says; None if that was not asked."""
    is_estimate: bool = False
    """Whether it was computed from operations and bytes instead of measured."""

    def times(self, factor: float) -> "Cost":
        """The same, so many times as long."""
        return dataclasses.replace(self, seconds=self.seconds * factor)


@dataclasses.dataclass(frozen=True)
class Hop:
    """What a message from one replica to another costs: the work of either side, and the way between them."""

    send: float
    """Seconds of work of the sender."""
    receive: float
    """Seconds of work of the receiver."""
    latency: float
    """Seconds until it arrives, besides those for its bytes."""
    bytes: int
    bandwidth: float
    """Bytes per second on the way; infinite where nothing is copied."""
    shared: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How much it occupies of what messages share on the way: the network out of one node and into the other."""


@dataclasses.dataclass(frozen=True)
class Overheads:
    """Seconds that an engine takes besides the steps of its workers, measured on the machine at hand."""

    round: float
    """For each round of a loop that runs in Python."""
    iteration: float
    """For each iteration of a worker: its metrics, and its report."""
    report: float
    """For each iteration of the run: to record the metrics."""


class Costs(Protocol):
    """Where the simulator looks up what things cost."""

    overheads: Overheads

    def segment(self, schedule: Schedule, segment: Segment) -> Cost:
        """One call of a segment."""
        ...

    def burst(self, schedule: Schedule) -> Cost | None:
        """One iteration of a fragment that runs several per call; None if it does not."""
        ...

    def host(self, program: Program, step: Host) -> Cost:
        """One call of a stage on the host, by one replica."""
        ...

    def hop(self, source: str, target: str, size: int) -> Hop:
        """A message from a replica on one device to a replica on another."""
        ...

    def resources(self, program: Program, replica: int, cost: Cost) -> Mapping[str, float]:
        """What a computation of a replica occupies."""
        ...

    def node_of(self, device: str) -> str:
        """The node that a device is part of."""
        ...

    @property
    def capacities(self) -> Mapping[str, float]:
        """How much there is of each resource."""
        ...
