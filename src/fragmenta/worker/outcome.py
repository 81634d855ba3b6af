"""What a worker reports of its iterations."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class Times:
    """Seconds spent computing, and in total, over the iterations that were measured."""

    busy: float = 0.0
    total: float = 0.0

    @property
    def share(self) -> float:
        """The share of its time spent computing."""
        return self.busy / self.total if self.total else 0.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One iteration of a worker: its metrics, by position, and how stale the acting parameters were."""

    metrics: dict[int, Any]
    lag: int | None = None
    """Versions between the acting and the learning parameters; None where they are the same by design."""
    source: int | None = None
    """The replica whose data it learned from, under a delivery that takes any replica first."""
    dropped: int = 0
    """Bundles dropped before this one because they were too stale."""
