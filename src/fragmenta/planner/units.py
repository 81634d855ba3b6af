"""What is compiled as one and called as one: a segment, or all iterations of a burst."""

import dataclasses
import functools
import hashlib
from typing import Any

from fragmenta.coordinator.fingerprint import work_text
from fragmenta.planner.amounts import Amounts, amounts, peak
from fragmenta.worker.backends.burst import runs_in_bursts
from fragmenta.worker.steps import Host, Key, Rounds, Schedule, Segment, Step, segments


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """A segment of a schedule, as it is compiled for the devices of its fragment."""

    schedule: Schedule
    segment: Segment
    is_burst: bool
    is_apart: bool
    """Whether its replicas are separate processes."""
    from_host: frozenset[int] = frozenset()
    """Positions of the inputs that stages on the host compute: they come as NumPy arrays."""
    to_host: frozenset[int] = frozenset()
    """Positions of the outputs that stages on the host read."""

    @property
    def kind(self) -> str:
        """The kind of its devices."""
        return self.schedule.program.fragment.devices[0].partition(":")[0]

    @property
    def width(self) -> int:
        """How many devices compute it together."""
        program = self.schedule.program
        spans = program.together and program.replicas == 1
        return len(set(program.fragment.devices)) if spans else 1

    @property
    def members(self) -> int:
        """How many replicas, each in its own process, exchange values in it."""
        program = self.schedule.program
        return program.replicas if program.together and self.segment.has_exchanges else 1

    @functools.cached_property
    def traced(self) -> Any:
        """Its program, from the view of one replica."""
        program = self.schedule.program
        axis = (program.fragment.axis, program.parts) if program.fragment.axis and program.together else None
        return self.segment.traced(self.schedule.shapes, axis)

    @functools.cached_property
    def identity(self) -> str:
        """Equal for what does the same work on the same number of devices, whatever the values of its floats."""
        program = self.schedule.program
        together = program.parts if program.together else 1
        host = f"{sorted(self.from_host)} {sorted(self.to_host)}"
        text = f"{self.kind} {self.width} {together} {self.members} {self.is_burst} {host}\n{work_text(self.traced)}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @functools.cached_property
    def amounts(self) -> Amounts:
        """What one replica computes and moves in it; where replicas share a device, all of them."""
        program = self.schedule.program
        shared = program.parts // self.width if program.together and program.replicas == 1 else 1
        return amounts(self.traced).times(shared)

    @functools.cached_property
    def peak(self) -> int:
        """Bytes that its results take at once, of one replica."""
        return peak(self.traced)


def units(schedule: Schedule, is_apart: bool) -> list[Unit]:
    """The units of a schedule, in the order of their segments."""
    program = schedule.program
    is_burst = runs_in_bursts(schedule, program.together and program.replicas == 1, is_apart and program.together)
    read, written = _crossing(schedule.steps)

    def positions(keys: tuple[Key, ...], among: set[Key]) -> frozenset[int]:
        return frozenset(i for i, key in enumerate(keys) if key in among)

    return [
        Unit(schedule, one, is_burst, is_apart, positions(one.inputs, written), positions(one.outputs, read))
        for one in segments(schedule.steps)
    ]


def _crossing(steps: tuple[Step, ...]) -> tuple[set[Key], set[Key]]:
    """The keys that stages on the host read, and those that they write."""
    read: set[Key] = set()
    written: set[Key] = set()
    for step in steps:
        if isinstance(step, Host):
            read |= {*step.inputs}
            written |= {*step.outputs}
        elif isinstance(step, Rounds):
            inside = _crossing(step.body)
            read |= inside[0] | {value for _, value in step.on_host}
            written |= inside[1]
            for _, param, result, last in step.carried:
                written |= {param, last} if result in written else set()
    return read, written
