"""Counters and statistics of a run while it trains, and when it looks up from training."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax

from fragmenta.engines import Engine
from fragmenta.progress.watching import Progress
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.episode_statistics import Tally
from fragmenta.runs.seeds import Seeds
from fragmenta.tracing.iteration import TOTALS
from fragmenta.training.callbacks import Added, Moment
from fragmenta.training.measures import Measures
from fragmenta.training.prepared import PreparedRun
from fragmenta.training.seeds import SeedTally
from fragmenta.training.start import Start

STRETCH_SECONDS = 1.0
"""How long the engine runs before the loop checks whether to save or to stop."""
COPY_SHARE = 0.05
"""The share of the time that copies of the state may take, besides those for checkpoints and evaluations."""


class RunLog:
    """Counters and statistics of a run so far, and its last good state."""

    def __init__(self, run: PreparedRun, start: Start, last_good: Checkpoint, compile_seconds: float) -> None:
        self._run, self.compile_seconds, self.last_good = run, compile_seconds, last_good
        self.began = self.iteration = start.iteration
        self._steps_before = self.steps = start.steps
        self.iterations = self.iteration + run.iterations_after(self.steps)
        self.records: list[dict[str, Any]] = []
        """Only for a run without a directory."""
        self.losses: dict[str, Any] = {}
        seeds = len(run.algorithm.seeds) if isinstance(run.algorithm, Seeds) else 0
        self.tally, self._seeds = SeedTally(seeds) if seeds else Tally(), max(1, seeds)
        for record in start.records:
            self.tally.recall(record)
        self._seconds_before = start.records[-1]["seconds"] if start.records else 0.0
        self.lags = self.lag_total = self.lag_most = 0
        self.dropped = self.replaced = 0
        """Bundles that were dropped, and processes that were lost and replaced under earlier plans."""
        self.changes: list[dict[str, Any]] = []
        """The changes of the plan."""
        self.seconds = self._copied_at = self._copy_seconds = 0.0
        self._progress: Progress | None = None
        """Of an iteration that is not recorded yet, because callbacks may add to it."""
        self._latest: Progress | None = None
        self._added = Added()
        self._measures = Measures()
        self._running = time.monotonic()
        self._plan_began = self.iteration, self.seconds
        if run.watcher:
            run.watcher.compiled(compile_seconds)

    def changed(self, run: PreparedRun, change: dict[str, Any]) -> None:
        """Continue under another plan."""
        self._run = run
        self.changes.append(change)
        self.end()
        self._plan_began = self.iteration, self.seconds

    def stretch(self) -> int:
        """Iterations until the next check: about one second, and not past the next checkpoint or evaluation."""
        run, remaining = self._run, self.iterations - self.iteration
        if run.callbacks.each_iteration:
            return 1
        if run.saver is None and run.planned.predicted is None:
            return remaining
        until_due = min((every - self.iteration % every for every in run.periods), default=remaining)
        iterations, seconds = self.iteration - self._plan_began[0], self.seconds - self._plan_began[1]
        affordable = int(STRETCH_SECONDS * iterations / max(seconds, 1e-9)) if iterations else 1
        return max(1, min(remaining, affordable, until_due))

    def add(self, report: Any) -> None:
        """Count an iteration; `commit` stores its record."""
        values = report.metrics
        if any(isinstance(value, jax.Array) for value in values.values()):
            values = jax.device_get(values)
        metrics = {name: values[i] for i, name in enumerate(self._run.plan.graph.metric_names)}
        self.losses = {name: value for name, value in metrics.items() if name not in TOTALS}
        self.steps += self._run.planned.steps_per_iteration
        self.seconds = time.monotonic() - self._running
        seconds = round(self._seconds_before + self.seconds, 6)
        record = {"iteration": self.iteration, "steps": self.steps, "seconds": seconds, **self.tally.add(metrics)}
        record |= self._measures.of(report, self.steps_since(self._steps_before), self.seconds)
        self.iteration += 1
        if report.lag is not None:
            self.lags, self.lag_total = self.lags + 1, self.lag_total + report.lag
            self.lag_most = max(self.lag_most, report.lag)
            self.dropped += report.dropped
        if report.source is not None:
            record |= {"source": report.source, "dropped": self.dropped}
        rate, mean = record["steps_per_second"], self.tally.return_mean
        self._latest = self._progress = Progress(self.iteration, self.iterations, self.steps, rate, mean, record)

    def commit(self) -> None:
        """Store the record of the latest iteration, if it is not stored yet, and report the progress."""
        if (progress := self._progress) is None:
            return
        progress.record.update(self._added.take())
        self._progress = None
        if self._run.metrics:
            self._run.metrics.add(progress.record)
        else:
            self.records.append(progress.record)
        if self._run.watcher:
            self._run.watcher.progressed(progress)

    def call(self, name: str, engine: Engine, structure: Any, **event: Any) -> None:
        """Call the callbacks about the latest iteration, and see whether the target return is reached."""
        if self._latest is None:
            return

        def params() -> Any:
            algorithm = self._run.algorithm
            return algorithm.params(jax.tree.unflatten(structure, engine.state(algorithm.rebuildable)))

        moment = Moment(self._latest, params, self._added, self._run.stop, **event)
        self._run.callbacks.call(name, moment)
        self._run.callbacks.check_return(moment, self.tally.has_enough_episodes)

    def call_about_files(self, engine: Engine, structure: Any) -> None:
        """Call the callbacks about the evaluations and checkpoints that were written since the last time."""
        for record in self._run.evaluation.written() if self._run.evaluation else ():
            self.call("on_evaluation", engine, structure, evaluation=record)
        for path in self._run.saver.written() if self._run.saver else ():
            self.call("on_checkpoint", engine, structure, checkpoint=path)

    def is_time_to_save(self, only_if_due: bool) -> bool:
        """Whether the state is to be copied now: where it is due, else as often as copying may take of the time."""
        run, now = self._run, self.seconds
        due = any(self.iteration % period == 0 for period in run.periods)
        due |= run.saver is not None and run.saver.due(self.iteration)
        last = bool(run.stop) or self.iteration == self.iterations
        least = STRETCH_SECONDS if run.callbacks.each_iteration else 0.0
        is_early = only_if_due or now - self._copied_at < max(least, self._copy_seconds / COPY_SHARE)
        if not due and not last and is_early:
            return False
        self._copied_at = now
        return True

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Measure how long a copy of the state takes."""
        began = time.monotonic()
        yield
        self._copy_seconds = time.monotonic() - began

    def end(self) -> None:
        """Stop the clock: the results of the last iteration have arrived."""
        self.seconds = time.monotonic() - self._running

    def steps_since(self, steps: int) -> int:
        """Steps of all seeds, where each has taken so many before."""
        return self._seeds * (self.steps - steps)

    @property
    def rate(self) -> float:
        """Steps per second since this start."""
        return self.steps_since(self._steps_before) / max(self.seconds, 1e-9)
