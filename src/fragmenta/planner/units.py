"""What is compiled as one and called as one: a segment, or all iterations of a burst."""

import dataclasses
import functools
import hashlib
from typing import Any

from fragmenta.coordinator.fingerprint import work_text
from fragmenta.planner.amounts import Amounts, amounts, peak
from fragmenta.worker.backends.burst import runs_in_bursts
from fragmenta.worker.steps import Schedule, Segment, segments


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """A segment of a schedule, as it is compiled for the devices of its fragment."""

    schedule: Schedule
    segment: Segment
    is_burst: bool
    is_apart: bool
    """Whether its replicas are separate processes."""

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
        text = f"{self.kind} {self.width} {together} {self.members} {self.is_burst}\n{work_text(self.traced)}"
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
    return [Unit(schedule, segment, is_burst, is_apart) for segment in segments(schedule.steps)]
