"""What channels and collectives cost, by size: as measured on the machine at hand, or about that much."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from fragmenta.graph import Plan
from fragmenta.planner.profile import Profile

NOTE = "channels"
"""What the profile keeps measured channels under: rows by name, by kind."""


@dataclasses.dataclass(frozen=True)
class ChannelCost:
    """Seconds that a message of so many bytes takes: of either side, and from one to the other."""

    bytes: int
    send: float = 0.0
    receive: float = 0.0
    way: float = 0.0


# On two cores of an AMD EPYC; used where nothing was measured, as for machines that are only described.
ESTIMATES: Mapping[str, tuple[ChannelCost, ...]] = {
    "reference": (ChannelCost(0, 3e-6, 5e-6, 2.5e-5),),
    "call": (ChannelCost(0, 2.5e-5),),
    "python": (ChannelCost(0, 1e-3),),
    "device": (ChannelCost(64, receive=3e-5), ChannelCost(2**22, receive=5.5e-4)),
    "pipe": (ChannelCost(64, 1.2e-5, 1.2e-5, 4.5e-5), ChannelCost(2**22, 5.4e-4, 5.4e-4, 4.5e-5)),
    "socket": (ChannelCost(64, 2e-5, 2e-5, 5e-5), ChannelCost(2**22, 4e-5, 1e-4, 2.5e-3)),
    "collective of 2": (ChannelCost(64, way=2e-4), ChannelCost(2**22, way=5.5e-3)),
}
"""Values passed by reference to another thread; calling a compiled program, which holds the interpreter; some work in
Python; placing a value on another device; pipes between processes of one machine and of two; an exchange of replicas in
processes, by their number."""


class Channels:
    """Looks up what channels and collectives cost."""

    def __init__(self, profile: Profile) -> None:
        self._costs = dict(ESTIMATES)
        for rows_by_name in profile.notes.get(NOTE, {}).values():
            self._costs |= {name: tuple(ChannelCost(*row) for row in rows) for name, rows in rows_by_name.items()}
        self._members = sorted(int(name.split()[-1]) for name in self._costs if name.startswith("collective"))

    def message(self, name: str, size: float = 0) -> ChannelCost:
        """What a message of so many bytes costs: between two sizes in proportion, beyond the last by its rate."""
        rows = self._costs[name]
        if len(rows) == 1 or size <= rows[0].bytes:
            return rows[0]
        low, high = next((pair for pair in itertools.pairwise(rows) if size <= pair[1].bytes), rows[-2:])
        share = (size - low.bytes) / (high.bytes - low.bytes)

        def between(a: float, b: float) -> float:
            return max(0.0, a + share * (b - a))

        way = between(low.way, high.way)
        return ChannelCost(round(size), between(low.send, high.send), between(low.receive, high.receive), way)

    def collective(self, members: int, size: float) -> float:
        """Seconds of one exchange of a value of so many bytes among so many processes of one machine."""
        below = max((count for count in self._members if count <= members), default=self._members[0])
        above = min((count for count in self._members if count >= members), default=below)
        low, high = (self.message(f"collective of {count}", size).way for count in (below, above))
        if above > below:
            return low + (members - below) / (above - below) * (high - low)
        return low * max(1.0, members / below)


def kinds_of(plan: Plan, is_apart: bool) -> tuple[str, ...]:
    """The kinds of channels of a plan that can be measured, if its workers are processes or else threads."""
    devices = {device for program in plan.programs for device in program.fragment.devices}
    kinds = {
        "threads": True,
        "devices": not is_apart and len(devices) > 1 and bool(plan.interfaces),
        "processes": is_apart and bool(plan.interfaces),
        "collectives": is_apart and any(program.replicas > 1 and program.exchanges() for program in plan.programs),
    }
    return tuple(kind for kind, is_there in kinds.items() if is_there)


def is_noted(profile: Profile, kind: str) -> bool:
    """Whether it was measured on this machine, or tried to."""
    return kind in profile.notes.get(NOTE, {})


def keep_costs(profile: Profile, kind: str, costs: Mapping[str, Sequence[ChannelCost]]) -> None:
    """Add what was measured of a kind to a profile."""
    rows = {name: [dataclasses.astuple(cost) for cost in its_costs] for name, its_costs in costs.items()}
    profile.notes.setdefault(NOTE, {})[kind] = rows
