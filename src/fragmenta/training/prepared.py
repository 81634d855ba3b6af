"""A run that is ready to start."""

import dataclasses
from pathlib import Path

from fragmenta.algorithms import Algorithm
from fragmenta.engines import Engine, Setup, engine_named
from fragmenta.envs import Environment
from fragmenta.evaluation.periodic import PeriodicEvaluation
from fragmenta.graph import Plan
from fragmenta.profiling.timeline import Window
from fragmenta.progress.watching import Watcher
from fragmenta.runs.metrics import MetricsLog
from fragmenta.runs.run_directory import RunDirectory
from fragmenta.runs.saving import Saver
from fragmenta.training.callbacks import Callbacks
from fragmenta.training.planning import PlannedRun, Replan
from fragmenta.training.stopping import Stop


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to start."""

    planned: PlannedRun
    started: float
    directory: RunDirectory | None
    metrics: MetricsLog | None
    saver: Saver | None
    evaluation: PeriodicEvaluation | None
    stop: Stop
    watcher: Watcher | None
    callbacks: Callbacks
    replan: Replan | None = None
    """Asked for a better plan while the run is slower than predicted; None to keep the plan."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm being trained."""
        return self.planned.trained

    @property
    def env(self) -> Environment:
        """The environments."""
        return self.planned.request.env

    @property
    def plan(self) -> Plan:
        """The plan: what runs where."""
        return self.planned.plan

    @property
    def periods(self) -> list[int]:
        """Iterations between two checkpoints, and between two evaluations, where they are given."""
        periods = [self.saver.every if self.saver else 0, self.evaluation.every if self.evaluation else 0]
        return [period for period in periods if period]

    def iterations_after(self, steps: int) -> int:
        """Iterations left after so many steps."""
        return -(-(self.algorithm.total_steps - steps) // self.planned.steps_per_iteration)


def start_engine(run: PreparedRun, iterations: int) -> Engine:
    """Start the engine of a run, for so many iterations of its plan: it compiles, and begins nothing yet."""
    planned, request = run.planned, run.planned.request
    setup = Setup(
        planned.plan,
        planned.trained,
        request.env,
        planned.policy,
        planned.cluster,
        request.options.merge,
        request.seed,
        request.options.deadline,
        Window.within(iterations) if request.options.timeline else None,
        request.options.engine,
        _logs(run.directory, planned.engine),
        run.watcher.placed if run.watcher else None,
    )
    return engine_named(planned.engine)(setup)


def _logs(directory: RunDirectory | None, engine: str) -> Path | None:
    """The folder for the output of the engine's processes."""
    if directory is None or not engine_named(engine).apart:
        return None
    logs = directory.path / "logs"
    logs.mkdir(exist_ok=True)
    return logs
