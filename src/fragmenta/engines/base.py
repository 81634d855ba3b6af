"""The common interface of engines: options, setup, reports, and the Engine protocol."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.engines.in_flight import InFlight
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.graph import Plan
from fragmenta.policies import Cluster, Policy
from fragmenta.profiling.timeline import Window, WorkerTimeline
from fragmenta.worker.outcome import Outcome
from fragmenta_host.episodes import Episodes

PLACEMENTS = ("pack", "spread")


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How processes of an engine are placed and replaced."""

    address: str | None = None
    """For --engine ray: the address of the cluster, as `ray start` prints it. Default: start Ray on this machine."""
    placement: str = "pack"
    """For --engine ray: pack fragments onto as few machines as possible, or spread them."""
    restarts: int = 3
    """For --engine processes and ray: how many lost processes are replaced before the run fails."""
    watchdog: float = 15.0
    """For --engine processes and ray: seconds without a heartbeat after which a process counts as lost."""

    def check(self) -> None:
        """Raise ConfigError for invalid values."""
        if self.placement not in PLACEMENTS:
            raise ConfigError(f"placement is '{self.placement}': choose one of {', '.join(PLACEMENTS)}")
        if self.restarts < 0:
            raise ConfigError(f"restarts is {self.restarts}: it must be at least 0")
        if not self.watchdog > 0:  # NaN is not
            raise ConfigError(f"watchdog is {self.watchdog}: it must be more than 0 seconds")


@dataclasses.dataclass(frozen=True)
class Setup:
    """A plan, and everything needed to rebuild it in another process."""

    plan: Plan
    algorithm: Algorithm
    env: Environment
    policy: str | Policy
    cluster: Cluster
    merge: bool = True
    seed: int = 0
    deadline: float = 300.0
    window: Window | None = None
    """The iterations to record in the timeline, if any."""
    options: EngineOptions = dataclasses.field(default_factory=EngineOptions)
    logs: Path | None = None
    """The folder for the output of processes."""
    placed: Callable[[Sequence["ProcessLocation"]], None] | None = None
    """Called with the locations of processes, at the start and after every replacement."""


@dataclasses.dataclass(frozen=True)
class ProcessLocation:
    """Where a process of an engine runs."""

    worker: str
    node: str
    host: str
    device: str
    pid: int


@dataclasses.dataclass(frozen=True)
class IterationReport:
    """One finished iteration: its metrics by position, and per fragment the share of time spent computing."""

    iteration: int
    metrics: dict[int, Any]
    busy: dict[str, float]
    lag: int | None
    """Versions between the acting and the learning parameters, where they may differ."""
    source: str | None
    """The replica whose data was learned from, under a delivery that takes any replica first."""
    dropped: int
    """Bundles dropped before this iteration's because they were too stale."""
    fill: dict[str, float]
    """Per `producer -> consumer`: the fill of the fullest channel between them, from 0 to 1."""


def report(
    plan: Plan, iteration: int, outcomes: Sequence[Outcome], busy: Iterable[tuple[str, float]], fill: dict[str, float]
) -> IterationReport:
    """Combine the workers' outcomes of one iteration; `busy` has the fragment and the busy share of each worker."""
    shares: dict[str, list[float]] = {}
    for fragment, share in busy:
        shares.setdefault(fragment, []).append(share)
    return IterationReport(
        iteration,
        {i: value for outcome in outcomes for i, value in outcome.metrics.items()},
        {fragment: sum(values) / len(values) for fragment, values in shares.items()},
        max((outcome.lag for outcome in outcomes if outcome.lag is not None), default=None),
        next((f"{plan.feeder}[{outcome.source}]" for outcome in outcomes if outcome.source is not None), None),
        sum(outcome.dropped for outcome in outcomes),
        fill,
    )


def report_of_messages(
    plan: Plan, iteration: int, messages: Iterable[tuple[str, dict[str, Any], list[np.ndarray]]]
) -> IterationReport:
    """Combine the messages of processes about one iteration: of each, the fragment, the message and its arrays."""
    fill: dict[str, float] = {}
    busy, outcomes = [], []
    for fragment, message, arrays in messages:
        metrics = dict(zip(message["metrics"], arrays, strict=True))
        outcomes.append(Outcome(metrics, message["lag"], message["source"], message["dropped"]))
        busy.append((fragment, message["busy"]))
        for pair, share in message["fill"].items():
            fill[pair] = max(share, fill.get(pair, 0.0))
    return report(plan, iteration, outcomes, busy, fill)


class Engine(Protocol):
    """Runs a plan. A context manager: leaving it stops everything that it started."""

    @property
    def env(self) -> Environment:
        """The environment to initialise the state with: its resets act on the environments that the fragments step."""
        ...

    def begin(self, state: Sequence[Any], in_flight: InFlight | None = None) -> None:
        """Load the leaves of the state and, for fragments that work one iteration behind, the values in flight (which
        must fit the plan); call it before the first `run`. Do not use the leaves of a replay afterwards: workers take
        them over. Where a large replay is to begin empty, its leaves may be shapes (see in_place.py)."""
        ...

    def run(self, iterations: int) -> Iterator[IterationReport]:
        """Train, and yield a report per iteration; call it again to continue."""
        ...

    def state(self, without: Sequence[str] = ()) -> list[Any]:
        """A consistent snapshot of the state's leaves, between two calls of `run`; None for the leaves in the fields
        `without`, which need not be moved or joined then."""
        ...

    @property
    def replaced(self) -> int:
        """The number of processes lost and replaced so far."""
        ...

    def episodes(self) -> Sequence[Episodes]:
        """Host environments that are in other processes, between two calls of `run`; none if they are in this one."""
        ...

    def in_flight(self) -> InFlight:
        """Values in flight to fragments that work one iteration behind, consistent with the state."""
        ...

    def finish(self) -> None:
        """Stop free-running fragments after their current iteration."""
        ...

    def timelines(self) -> list[WorkerTimeline]:
        """The recorded timelines."""
        ...

    def __enter__(self) -> "Engine": ...

    def __exit__(self, *_: Any) -> None: ...
