"""What a run tells about itself while it trains."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from fragmenta.algorithms import Algorithm
from fragmenta.engines import ProcessLocation
from fragmenta.graph import Plan


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a run."""

    iteration: int
    iterations: int
    steps: int
    steps_per_second: float
    return_mean: float | None
    record: dict[str, Any]
    """All metrics of the latest iteration, as written to metrics.jsonl."""


class Watcher(Protocol):
    """Receives the progress of a run; the terminal view is one."""

    def planned(self, plan: Plan, algorithm: Algorithm, steps: int, environments: str) -> None:
        """Called before compilation: the plan, the steps of an iteration, the environments and where they run."""
        ...

    def placed(self, workers: Sequence[ProcessLocation]) -> None:
        """Called once worker processes have started, and again for replaced ones."""
        ...

    def compiled(self, seconds: float) -> None:
        """Called before the first iteration."""
        ...

    def progressed(self, progress: Progress) -> None:
        """Called after every iteration."""
        ...

    def remarked(self, text: str) -> None:
        """Called with a line about the run, such as that it is slower than predicted."""
        ...
