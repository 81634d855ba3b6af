"""What engines have in common: what they are given, what they can do, what they report."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from fragmenta.algorithms import Algorithm
from fragmenta.engines.in_flight import InFlight
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.graph import Plan
from fragmenta.policies import Cluster, Policy
from fragmenta.profiling.timeline import Window, WorkerTimeline
from fragmenta.worker.outcome import Outcome

PLACEMENTS = ("pack", "spread")


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How processes of an engine are placed and replaced."""

    address: str | None = None
    """For --engine ray: the cluster to run on, as `ray start` printed it. Default: a Ray of its own on this machine."""
    placement: str = "pack"
    """For --engine ray: pack fragments onto as few machines as will do, or spread them."""
    restarts: int = 3
    """For --engine processes and ray: how many lost fragments are replaced before the run ends."""
    watchdog: float = 15.0
    """For --engine processes and ray: seconds without a sign of life after which a fragment counts as lost."""

    def check(self) -> None:
        """Refuse what cannot be meant."""
        if self.placement not in PLACEMENTS:
            raise ConfigError(f"placement is '{self.placement}': choose one of {', '.join(PLACEMENTS)}")
        if self.restarts < 0:
            raise ConfigError(f"restarts is {self.restarts}: it must be at least 0")
        if self.watchdog <= 0:
            raise ConfigError(f"watchdog is {self.watchdog}: it must be more than 0 seconds")


@dataclasses.dataclass(frozen=True)
class Setup:
    """A plan and all that is needed to make it again elsewhere."""

    plan: Plan
    algorithm: Algorithm
    env: Environment
    policy: str | Policy
    cluster: Cluster
    merge: bool = True
    seed: int = 0
    deadline: float = 300.0
    window: Window | None = None
    """Iterations to record, if any."""
    options: EngineOptions = dataclasses.field(default_factory=EngineOptions)
    logs: Path | None = None
    """Where processes leave what they print."""
    placed: Callable[[Sequence["Placed"]], None] | None = None
    """Told where the processes are, at the start and whenever one was replaced."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """A process of an engine."""

    worker: str
    node: str
    host: str
    device: str
    pid: int


@dataclasses.dataclass(frozen=True)
class Report:
    """One finished iteration: its metrics by position, and per fragment the share of time spent computing."""

    iteration: int
    metrics: dict[int, Any]
    busy: dict[str, float]
    lag: int | None
    """Versions between the parameters that acted and those that learned, where they may differ."""
    source: str | None
    """The replica that was learned from, where any may come first."""
    dropped: int
    """Bundles dropped before this iteration's, because they were too old."""
    fill: dict[str, float]
    """Per `producer -> consumer`: how full the fullest of the channels between them is right now, from 0 to 1."""


def report(
    plan: Plan, iteration: int, outcomes: Sequence[Outcome], busy: Iterable[tuple[str, float]], fill: dict[str, float]
) -> Report:
    """What workers say of an iteration, taken together; `busy` has the fragment of each worker and its share."""
    shares: dict[str, list[float]] = {}
    for fragment, share in busy:
        shares.setdefault(fragment, []).append(share)
    (feeder,) = plan.free_running or ("",)
    return Report(
        iteration,
        {i: value for outcome in outcomes for i, value in outcome.metrics.items()},
        {fragment: sum(each) / len(each) for fragment, each in shares.items()},
        max((outcome.lag for outcome in outcomes if outcome.lag is not None), default=None),
        next((f"{feeder}[{outcome.source}]" for outcome in outcomes if outcome.source is not None), None),
        sum(outcome.dropped for outcome in outcomes),
        fill,
    )


class Engine(Protocol):
    """Runs a plan. A context manager: leaving it ends all that it started."""

    @property
    def env(self) -> Environment:
        """The environment to initialise the state with: what it resets is what the fragments will step."""
        ...

    def begin(self, state: Sequence[Any], in_flight: InFlight | None = None) -> None:
        """Give the fragments the leaves of the state, and what is on its way to those that work one iteration behind,
        if the plan fits that; before the first `run`."""
        ...

    def run(self, iterations: int) -> Iterator[Report]:
        """Train, and yield a report per iteration; may be called again to go on."""
        ...

    def state(self) -> list[Any]:
        """The leaves of the state, all of one moment, between two calls of `run`."""
        ...

    @property
    def replaced(self) -> int:
        """How many processes were lost and replaced so far."""
        ...

    def in_flight(self) -> InFlight:
        """What fragments that work one iteration behind will take next, of the same moment as the state."""
        ...

    def finish(self) -> None:
        """Let fragments that run freely end after the iteration that they are in."""
        ...

    def timelines(self) -> list[WorkerTimeline]:
        """What was recorded."""
        ...

    def __enter__(self) -> "Engine": ...

    def __exit__(self, *_: Any) -> None: ...
