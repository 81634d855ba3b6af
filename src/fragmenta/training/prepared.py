"""A run that is ready to start."""

import dataclasses
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.engines import Setup
from fragmenta.evaluation.periodic import PeriodicEvaluation
from fragmenta.graph import Plan
from fragmenta.progress.watching import Watcher
from fragmenta.runs.metrics import MetricsLog
from fragmenta.runs.run_directory import RunDirectory
from fragmenta.runs.saving import Saver
from fragmenta.training.callbacks import Callbacks
from fragmenta.training.stopping import Stop


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to start."""

    setup: Setup
    steps_per_iteration: int
    identity: dict[str, Any]
    started: float
    timeline: bool
    """Whether to record a timeline of some iterations and write it to the run directory."""
    directory: RunDirectory | None
    metrics: MetricsLog | None
    saver: Saver | None
    evaluation: PeriodicEvaluation | None
    stop: Stop
    watcher: Watcher | None
    callbacks: Callbacks

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm being trained."""
        return self.setup.algorithm

    @property
    def plan(self) -> Plan:
        """The plan: what runs where."""
        return self.setup.plan
