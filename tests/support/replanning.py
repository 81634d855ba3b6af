"""A stand-in for the planner: runs are slower than predicted, and continue under plans that a test gives."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from fragmenta import Cluster
from fragmenta.training import train
from fragmenta.training.planning import PlannedRun, Replan, plan_run
from helpers import StopAt

NEVER_REACHED = 1e12
ASKED_AFTER = 3
"""Iterations under a plan until a better one is asked for, if every iteration is a measurement of its own."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A distribution policy, an engine and a cluster."""

    policy: Any
    replicas: int = 1
    engine: str = "local"
    lag: int = 0

    @property
    def cluster(self) -> Cluster:
        return Cluster(("cpu:0", "cpu:1", "cpu:2")[: self.replicas + 1], self.replicas, self.lag)


class Places:
    """Puts a run under one plan after another, and keeps what it measured."""

    def __init__(self, *places: Place, before: Callable[[], Any] = lambda: None) -> None:
        self._places, self._before = list(places), before
        self.measured: list[float] = []

    def __call__(self, run: PlannedRun, measured: float) -> PlannedRun | None:
        self.measured.append(measured)
        if not self._places:
            return None
        self._before()
        place = self._places.pop(0)
        placed = {"policy": place.policy, "engine": place.engine, "cluster": place.cluster}
        better = plan_run(dataclasses.replace(run.request, **placed))
        return dataclasses.replace(better, predicted=NEVER_REACHED)


class Remarks(StopAt):
    """Keeps the lines about a run, and interrupts it at an iteration."""

    def __init__(self, stop_at: int = -1) -> None:
        super().__init__(stop_at)
        self.lines: list[str] = []

    def remarked(self, text: str) -> None:
        self.lines.append(text)


def replanned(monkeypatch: pytest.MonkeyPatch, replan: Replan | None, predicted: float = NEVER_REACHED) -> None:
    """From now on, runs have this prediction, and ask for a better plan as soon as they can."""
    start = train._start

    def start_predicted(run: PlannedRun, *arguments: Any) -> Any:
        return start(dataclasses.replace(run, predicted=predicted), *arguments[:-1], replan)

    monkeypatch.setattr(train, "_start", start_predicted)
    monkeypatch.setattr("fragmenta.training.log.STRETCH_SECONDS", 0.0)
    monkeypatch.setattr("fragmenta.training.replanning.SPAN_SECONDS", 0.0)
