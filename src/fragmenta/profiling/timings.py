"""What was measured of a plan: per worker and segment the time, per interface the bytes and the wait."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class WorkerTime:
    """Where the time of one replica goes, in milliseconds per iteration, and what crosses, in bytes per iteration."""

    fragment: str
    worker: str
    iterations: int
    iteration_ms: float
    busy_ms: float
    wait_ms: dict[str, float]
    """By the fragment that it waited for: to get something from it, or for it to take something."""
    place_ms: float
    """Bringing what came to the device where it is used, and joining parts."""
    sent_bytes: float
    received_bytes: float

    @property
    def rest_ms(self) -> float:
        """What is none of these: Python between the steps, and reports."""
        return max(0.0, self.iteration_ms - self.busy_ms - _waits(self) - self.place_ms)


@dataclasses.dataclass(frozen=True)
class SegmentTime:
    """What one segment or host stage takes, over all replicas of its fragment."""

    fragment: str
    label: str
    times: float
    """How often per iteration."""
    median_ms: float


@dataclasses.dataclass(frozen=True)
class InterfaceTime:
    """What crosses through one interface: bytes that arrive per iteration, over all replicas, and the wait for each."""

    producer: str
    consumer: str
    value: int
    """The number of the value in the graph."""
    name: str
    bytes: float
    median_wait_ms: float


@dataclasses.dataclass(frozen=True)
class Timings:
    """All that was measured in one run."""

    workers: tuple[WorkerTime, ...]
    segments: tuple[SegmentTime, ...]
    interfaces: tuple[InterfaceTime, ...]

    def of(self, fragment: str) -> list[WorkerTime]:
        """The replicas of a fragment."""
        return [worker for worker in self.workers if worker.fragment == fragment]

    def as_json(self) -> dict[str, Any]:
        """Plain data, to be written."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Timings":
        """The same from what was written."""
        return Timings(
            tuple(WorkerTime(**row) for row in data["workers"]),
            tuple(SegmentTime(**row) for row in data["segments"]),
            tuple(InterfaceTime(**row) for row in data["interfaces"]),
        )


def share(workers: Sequence[WorkerTime], part: Callable[[WorkerTime], float]) -> float:
    """A part of an iteration as a share of it, on average over the replicas of a fragment."""
    return sum(part(worker) / worker.iteration_ms for worker in workers) / len(workers)


def busy_share(workers: Sequence[WorkerTime]) -> float:
    """The share of its time that a fragment computes."""
    return share(workers, lambda worker: worker.busy_ms)


def waiting(workers: Sequence[WorkerTime]) -> dict[str, float]:
    """Milliseconds per iteration that a fragment waits for each of the others, on average over its replicas."""
    peers = dict.fromkeys(peer for worker in workers for peer in worker.wait_ms)
    return {peer: sum(worker.wait_ms.get(peer, 0.0) for worker in workers) / len(workers) for peer in peers}


def busiest(timings: Timings) -> str | None:
    """The fragment that waits for others the smallest share of its time; None if nothing was measured."""
    fragments = dict.fromkeys(worker.fragment for worker in timings.workers)
    return min(fragments, key=lambda name: share(timings.of(name), _waits), default=None)


def bottleneck(timings: Timings) -> str:
    """One line: the fragment that is busiest, with what, and who waits for it how long."""
    name = busiest(timings)
    if name is None:
        return "no fragment went through a whole iteration"
    workers = timings.of(name)
    computes = f"computes {busy_share(workers):.0%} of the time"
    others = dict.fromkeys(worker.fragment for worker in timings.workers if worker.fragment != name)
    if not others:
        return f"everything is in '{name}', which {computes}"
    places = f"places what came {share(workers, lambda worker: worker.place_ms):.0%}"
    text = f"the busiest fragment is '{name}': it {computes}, {places} and waits {share(workers, _waits):.0%}"
    for other in others:
        if milliseconds := waiting(timings.of(other)).get(name):
            text += f"; '{other}' waits {ms_text(milliseconds)} per iteration for it"
    return text


def _waits(worker: WorkerTime) -> float:
    return sum(worker.wait_ms.values())


def ms_text(milliseconds: float) -> str:
    """`3.2 ms`."""
    digits = 0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2 if milliseconds >= 1 else 3
    return f"{milliseconds:.{digits}f} ms"
