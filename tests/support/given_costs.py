"""Costs that a test gives, in place of a profile."""

import dataclasses
from collections.abc import Mapping

from fragmenta.graph import Program
from fragmenta.planner.costs import Cost, Hop, Overheads
from fragmenta.worker.steps import Host, Schedule, Segment

NO_OVERHEADS = Overheads(0.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class GivenCosts:
    """Every segment of a fragment takes as long, and every message; each device is its own node."""

    seconds: Mapping[str, float]
    """By fragment; of a segment with a stage. Glue takes no time."""
    send: float = 0.0
    receive: float = 0.0
    latency: float = 0.0
    bandwidth: float = float("inf")
    shares_node: bool = False
    """Whether all replicas take turns on one core."""
    capacities: Mapping[str, float] = dataclasses.field(default_factory=dict)
    overheads: Overheads = NO_OVERHEADS

    def segment(self, schedule: Schedule, segment: Segment) -> Cost:
        return Cost(self.seconds[schedule.program.fragment.name] if segment.label != "glue" else 0.0)

    def burst(self, schedule: Schedule) -> Cost | None:
        return None

    def host(self, program: Program, step: Host) -> Cost:
        return Cost(self.seconds[program.fragment.name])

    def hop(self, source: str, target: str, size: int) -> Hop:
        if self.bandwidth == float("inf"):
            return Hop(self.send, self.receive, self.latency, size, self.bandwidth)
        shared = {f"out of {source}": 1.0, f"into {target}": 1.0}
        return Hop(self.send, self.receive, self.latency, size, self.bandwidth, shared)

    def node_of(self, device: str) -> str:
        return device

    def resources(self, program: Program, replica: int, cost: Cost) -> Mapping[str, float]:
        return {"core": 1.0} if self.shares_node else {}
