"""Measurements of a plan: times per worker and segment, bytes and waits per interface."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class WorkerTime:
    """Where one replica spends its time, in milliseconds per iteration, and its traffic, in bytes per iteration."""

    fragment: str
    worker: str
    iterations: int
    iteration_ms: float
    busy_ms: float
    wait_ms: dict[str, float]
    """Time spent waiting to receive from, or send to, each other fragment."""
    place_ms: float
    """Transferring received values to the device, and joining parts."""
    sent_bytes: float
    received_bytes: float

    @property
    def rest_ms(self) -> float:
        """The remainder: Python overhead between steps, and reports."""
        return max(0.0, self.iteration_ms - self.busy_ms - _waits(self) - self.place_ms)


@dataclasses.dataclass(frozen=True)
class SegmentTime:
    """The time of one segment or host stage, over all replicas of its fragment."""

    fragment: str
    label: str
    times: float
    """Calls per iteration."""
    median_ms: float


@dataclasses.dataclass(frozen=True)
class InterfaceTime:
    """The traffic of one interface: bytes received per iteration, over all replicas, and the median wait."""

    producer: str
    consumer: str
    value: int
    """The id of the value in the graph."""
    name: str
    bytes: float
    median_wait_ms: float


@dataclasses.dataclass(frozen=True)
class Timings:
    """All measurements of one run."""

    workers: tuple[WorkerTime, ...]
    segments: tuple[SegmentTime, ...]
    interfaces: tuple[InterfaceTime, ...]

    def of(self, fragment: str) -> list[WorkerTime]:
        """The replicas of a fragment."""
        return [worker for worker in self.workers if worker.fragment == fragment]

    def as_json(self) -> dict[str, Any]:
        """The measurements as plain data, for JSON."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Timings":
        """The inverse of `as_json`."""
        return Timings(
            tuple(WorkerTime(**row) for row in data["workers"]),
            tuple(SegmentTime(**row) for row in data["segments"]),
            tuple(InterfaceTime(**row) for row in data["interfaces"]),
        )


def share(workers: Sequence[WorkerTime], part: Callable[[WorkerTime], float]) -> float:
    """A part of the iteration time as a share of it, averaged over the replicas of a fragment."""
    return sum(part(worker) / worker.iteration_ms for worker in workers) / len(workers)


def busy_share(workers: Sequence[WorkerTime]) -> float:
    """The share of its time that a fragment spends computing."""
    return share(workers, lambda worker: worker.busy_ms)


def waiting(workers: Sequence[WorkerTime]) -> dict[str, float]:
    """Milliseconds per iteration that a fragment waits for each other fragment, averaged over its replicas."""
    peers = dict.fromkeys(peer for worker in workers for peer in worker.wait_ms)
    return {peer: sum(worker.wait_ms.get(peer, 0.0) for worker in workers) / len(workers) for peer in peers}


def busiest(timings: Timings) -> str | None:
    """The fragment with the smallest share of waiting time; None if nothing was measured."""
    fragments = dict.fromkeys(worker.fragment for worker in timings.workers)
    return min(fragments, key=lambda name: share(timings.of(name), _waits), default=None)


def bottleneck(timings: Timings) -> str:
    """One line: the busiest fragment, how it spends its time, and how long others wait for it."""
    name = busiest(timings)
    if name is None:
        return "no fragment completed an iteration"
    workers = timings.of(name)
    computes = f"computes {busy_share(workers):.0%} of the time"
    others = dict.fromkeys(worker.fragment for worker in timings.workers if worker.fragment != name)
    if not others:
        return f"everything is in '{name}', which {computes}"
    transfers = f"transfers inputs {share(workers, lambda worker: worker.place_ms):.0%}"
    text = f"the busiest fragment is '{name}': it {computes}, {transfers} and waits {share(workers, _waits):.0%}"
    for other in others:
        if milliseconds := waiting(timings.of(other)).get(name):
            text += f"; '{other}' waits {ms_text(milliseconds)} per iteration for it"
    return text


def _waits(worker: WorkerTime) -> float:
    return sum(worker.wait_ms.values())


def ms_text(milliseconds: float) -> str:
    """A duration as text, such as `3.2 ms`."""
    digits = 0 if milliseconds >= 100 else 1 if milliseconds >= 10 else 2 if milliseconds >= 1 else 3
    return f"{milliseconds:.{digits}f} ms"
