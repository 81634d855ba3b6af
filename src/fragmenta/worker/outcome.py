"""What a worker says of its iterations."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class Times:
    """Seconds that a worker computed, and in total, over the iterations in which it was watched."""

    busy: float = 0.0
    total: float = 0.0

    @property
    def share(self) -> float:
        """Of its time, what it computed."""
        return self.busy / self.total if self.total else 0.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One iteration of a worker: its metrics, by position, and how old the parameters behind it were."""

    metrics: dict[int, Any]
    lag: int | None = None
    """Versions between the parameters that acted and those that learned; None where they are the same by design."""
    source: int | None = None
    """The replica that it learned from, where any may come first."""
    dropped: int = 0
    """How many bundles were dropped before this one, because they were too old."""
