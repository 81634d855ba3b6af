"""The loop around an engine: runs stretches of iterations; between them, saves checkpoints and checks for a stop."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.command import command
from fragmenta.engines import ENGINES, Engine
from fragmenta.profiling.timeline import Window
from fragmenta.progress.watching import Progress
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.episode_statistics import Tally
from fragmenta.runs.run_directory import StoredRecords, sha256
from fragmenta.runs.seeds import Seeds
from fragmenta.runs.timeline_files import write_timeline
from fragmenta.tracing.iteration import TOTALS
from fragmenta.training.blame import first_bad_stage, is_finite
from fragmenta.training.callbacks import Added, Moment
from fragmenta.training.measures import Measures
from fragmenta.training.prepared import PreparedRun
from fragmenta.training.result import Result
from fragmenta.training.seeds import SeedTally, seed_summaries
from fragmenta.training.start import Start
from fragmenta.training.stopping import NotFiniteError, StoppedError

STRETCH_SECONDS = 1.0
"""How long the engine runs before the loop checks whether to save or to stop."""
COPY_SHARE = 0.05
"""The share of the time that copies of the state may take, besides those for checkpoints and evaluations."""


def run_loop(run: PreparedRun, start: Start) -> Result:
    """Train until the end, a stop request or a failure; the last good state is saved in every case."""
    compiling = time.monotonic()
    window = Window.within(_iterations(run, start.steps)) if run.timeline else None
    setup = dataclasses.replace(run.setup, window=window, placed=run.watcher.placed if run.watcher else None)
    engine = ENGINES[run.identity["engine"]](setup)
    with engine.env.opened(run.plan.lanes), engine:
        state, last_good = start.state(engine.env)
        leaves, structure = jax.tree.flatten(state)
        engine.begin(leaves, last_good.in_flight)
        del state, leaves  # the engine has its own copy
        run.stop.is_compiling = False
        log = _Log(run, start.iteration, start.steps, start.records, time.monotonic() - compiling)
        try:
            while log.iteration < log.iterations and not run.stop:
                for report in engine.run(_stretch(run, log)):
                    log.add(report)
                    if not run.callbacks.each_iteration:
                        log.commit()
                    if not is_finite([np.asarray(value) for value in log.losses.values()]):
                        raise _not_finite(run, start, log, last_good)
                log.call("on_iteration", engine, structure)
                log.commit()
                if run.saver is None or not log.is_time_to_save(only_if_due=start.copies_are_large):
                    continue
                with log.copying():
                    leaves = engine.state(start.unsaved)
                    state = jax.tree.unflatten(structure, jax.block_until_ready(leaves))
                    arrays = start.saved(state)
                if not is_finite(run.algorithm.params(state)):
                    raise _not_finite(run, start, log, last_good)
                last_good = Checkpoint(arrays, log.iteration, log.steps, in_flight=engine.in_flight())
                if run.evaluation:
                    run.evaluation.consider(last_good, run.algorithm.params(state))
                else:
                    run.saver.consider(last_good, log.tally.return_mean)
                if run.saver.due(log.iteration):
                    run.saver.save(last_good)
                log.call_about_files(engine, structure)
            engine.finish()
        finally:
            log.commit()
            if run.saver and (start.checkpoint is None or last_good.iteration > start.iteration):  # else it is on disk
                run.saver.save(last_good)
        state = jax.tree.unflatten(structure, engine.state(start.left_behind))
        jax.block_until_ready(state)
        log.end()
        if run.evaluation and run.stop.signal is None:
            run.evaluation.finish(last_good, run.algorithm.params(state))
        if run.saver:
            run.saver.close()
        log.call_about_files(engine, structure)
        timelines, replaced = engine.timelines(), engine.replaced
    if run.directory and window:
        write_timeline(run.directory.path, timelines)
    result = _result(run, start, log, state)
    return dataclasses.replace(result, summary=result.summary | {"replaced": replaced}) if replaced else result


def _stretch(run: PreparedRun, log: "_Log") -> int:
    """Iterations until the next check: about one second, and not past the next checkpoint or evaluation."""
    remaining = log.iterations - log.iteration
    if run.callbacks.each_iteration:
        return 1
    if run.saver is None:
        return remaining
    until_due = min((every - log.iteration % every for every in _periods(run)), default=remaining)
    completed = log.iteration - log.began
    affordable = int(STRETCH_SECONDS * completed / max(log.seconds, 1e-9)) if completed else 1
    return max(1, min(remaining, affordable, until_due))


def _periods(run: PreparedRun) -> list[int]:
    """Iterations between two checkpoints, and between two evaluations, where they are given."""
    periods = [run.saver.every if run.saver else 0, run.evaluation.every if run.evaluation else 0]
    return [period for period in periods if period]


def _iterations(run: PreparedRun, done: int) -> int:
    """Iterations left after `done` steps."""
    return -(-(run.algorithm.total_steps - done) // run.steps_per_iteration)


class _Log:
    """Counters and statistics of a run so far."""

    def __init__(
        self, run: PreparedRun, iteration: int, steps: int, earlier: Sequence[dict[str, Any]], compile_seconds: float
    ) -> None:
        self._run, self.compile_seconds = run, compile_seconds
        self.began = self.iteration = iteration
        self._steps_before = self.steps = steps
        self.iterations = iteration + _iterations(run, steps)
        self.records: list[dict[str, Any]] = []
        """Only for a run without a directory."""
        self.losses: dict[str, Any] = {}
        seeds = len(run.algorithm.seeds) if isinstance(run.algorithm, Seeds) else 0
        self.tally, self._seeds = SeedTally(seeds) if seeds else Tally(), max(1, seeds)
        for record in earlier:
            self.tally.recall(record)
        self._seconds_before = earlier[-1]["seconds"] if earlier else 0.0
        self.lags = self.lag_total = self.lag_most = 0
        self.dropped = 0
        self.seconds = self._copied_at = self._copy_seconds = 0.0
        self._progress: Progress | None = None
        """Of an iteration that is not recorded yet, because callbacks may add to it."""
        self._latest: Progress | None = None
        self._added = Added()
        self._measures = Measures()
        self._running = time.monotonic()
        if run.watcher:
            run.watcher.compiled(compile_seconds)

    def add(self, report: Any) -> None:
        """Count an iteration; `commit` stores its record."""
        values = jax.device_get(report.metrics)
        metrics = {name: values[i] for i, name in enumerate(self._run.plan.graph.metric_names)}
        self.losses = {name: value for name, value in metrics.items() if name not in TOTALS}
        self.steps += self._run.steps_per_iteration
        self.seconds = time.monotonic() - self._running
        seconds = round(self._seconds_before + self.seconds, 6)
        record = {"iteration": self.iteration, "steps": self.steps, "seconds": seconds, **self.tally.add(metrics)}
        record |= self._measures.of(report, self._seeds * (self.steps - self._steps_before), self.seconds)
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
        due = any(self.iteration % period == 0 for period in _periods(run))
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

    @property
    def rate(self) -> float:
        """Steps per second since this start."""
        return self._seeds * (self.steps - self._steps_before) / max(self.seconds, 1e-9)


def _result(run: PreparedRun, start: Start, log: _Log, state: Any) -> Result:
    params = run.algorithm.params(state)
    summary = {
        **run.identity,
        "total_steps": log.steps,
        "iterations": log.iteration,
        "steps_per_second": round(log.rate, 1),
        "compile_seconds": round(log.compile_seconds, 3),
        "wall_seconds": round(time.monotonic() - run.started, 3),
        "return_mean": log.tally.return_mean,
        "ended": run.stop.reason or "completed",
        "params_sha256": sha256(params),
    }
    summary |= {f"resumed_{field}": how for field, how in start.resumption.items()}
    env = run.setup.env
    if env.restarts:
        summary["env_restarts"] = env.restarts
    if log.lags:
        summary |= {"lag_mean": round(log.lag_total / log.lags, 3), "lag_max": log.lag_most}
        summary["dropped"] = log.dropped
    if run.stop.signal is not None and log.iteration < log.iterations:
        assert run.directory is not None
        name, path = signal.Signals(run.stop.signal).name, run.directory.path
        saved = f"saved after {log.steps:,} of {run.algorithm.total_steps:,} steps"
        raise StoppedError(run.stop.signal, f"{name}: {saved}; continue with: {command('resume', path)}")
    if isinstance(run.algorithm, Seeds) and isinstance(log.tally, SeedTally):
        summary["per_seed"] = seed_summaries(run.algorithm, params, log.tally)
    records = StoredRecords(run.directory.path / "metrics.jsonl", log.began) if run.directory else log.records
    return Result(params, state, records, summary, run.algorithm, env)


def _not_finite(run: PreparedRun, start: Start, log: _Log, last_good: Checkpoint) -> NotFiniteError:
    """The error for non-finite values: the stage that produced them, what is saved, how to continue."""
    wrong = [n for n, value in log.losses.items() if not is_finite([np.asarray(value)])] or ["parameters"]
    stage = None
    env = run.setup.env
    if env.is_replayable:  # others have moved on and cannot repeat it
        state = start.restored(env, last_good)
        stage = first_bad_stage(run.algorithm, env, run.plan.graph, state, log.iteration - last_good.iteration)
    cause = f"stage '{stage}' produced NaN or Inf from finite inputs" if stage else "NaN or Inf appeared"
    description = f"{cause} in iteration {log.iteration - 1} ({', '.join(wrong)})"
    if run.saver is None or run.directory is None:
        return NotFiniteError(f"{description}: try a smaller learning rate")
    saved = f"the state after iteration {last_good.iteration} is saved"
    path = run.directory.path
    smaller = f"for a smaller learning rate, call fragmenta.resume('{path}', algorithm=...) in Python"
    return NotFiniteError(f"{description}; {saved}: continue with {command('resume', path)}; {smaller}")
