"""The loop around an engine: stretches of iterations, and between them checkpoints and an early end."""

import dataclasses
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.engines import ENGINES, Placed, Setup
from fragmenta.engines.in_flight import InFlight
from fragmenta.envs import Environment, HostEnvironment
from fragmenta.evaluation.periodic import PeriodicEvaluation
from fragmenta.graph import Plan
from fragmenta.profiling.timeline import Window
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.episode_statistics import Tally
from fragmenta.runs.metrics import MetricsLog
from fragmenta.runs.run_directory import KeptRecords, RunDirectory, sha256
from fragmenta.runs.saving import Saver
from fragmenta.runs.state import from_arrays, to_arrays
from fragmenta.runs.timeline_files import keep_timeline
from fragmenta.training.blame import first_bad_stage, is_finite
from fragmenta.training.measures import Measures
from fragmenta.training.seeds import Seeds, SeedTally, seed_summaries
from fragmenta.training.stopping import NotFiniteError, Stop, StoppedError

STRETCH_SECONDS = 1.0
"""How long the engine runs before anybody asks whether to save or to stop."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What training gives back: parameters, the whole state, one record per iteration, and the summary."""

    params: Any
    state: Any
    metrics: Sequence[dict[str, Any]]
    """Those of a run with a directory are read from there when they are first looked at."""
    summary: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run is."""

    iteration: int
    iterations: int
    steps: int
    steps_per_second: float
    return_mean: float | None
    record: dict[str, Any]
    """All metrics of the latest iteration, as they are kept."""


class Watcher(Protocol):
    """Sees a run as it goes; the terminal view is one."""

    def planned(self, plan: Plan, algorithm: Algorithm, environments: str) -> None:
        """Before anything is compiled; `environments` says in words what they are and where they run."""
        ...

    def placed(self, workers: Sequence[Placed]) -> None:
        """Once processes of their own have started, and again for those that were replaced."""
        ...

    def compiled(self, seconds: float) -> None:
        """Before the first iteration."""
        ...

    def progressed(self, progress: Progress) -> None:
        """After every iteration."""
        ...


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a run begins: at the beginning, or after the iterations of an earlier one."""

    state: Any
    iteration: int = 0
    steps: int = 0
    records: tuple[dict[str, Any], ...] = ()
    """Those of the iterations before."""
    in_flight: InFlight = dataclasses.field(default_factory=dict)
    """What was on its way then, if the plan takes it one iteration late."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One run, ready to start."""

    setup: Setup
    identity: dict[str, Any]
    started: float
    timeline: bool
    """Whether to record some iterations, and keep that with the run."""
    directory: RunDirectory | None
    metrics: MetricsLog | None
    saver: Saver | None
    evaluation: PeriodicEvaluation | None
    watcher: Watcher | None
    stop: Stop

    @property
    def algorithm(self) -> Algorithm:
        """What is trained."""
        return self.setup.algorithm

    @property
    def plan(self) -> Plan:
        """What runs where."""
        return self.setup.plan


def run_job(job: Job, steps: int, start: Callable[[Environment], Start]) -> Result:
    """Train to the end, or until asked to stop or something fails; what is to be kept is kept in any case.

    `steps` were done before; `start` makes the state to begin with, on the environment as the engine has it.
    """
    compiling = time.monotonic()
    window = Window.within(_iterations(job, steps)) if job.timeline else None
    setup = dataclasses.replace(job.setup, window=window, placed=job.watcher.placed if job.watcher else None)
    engine = ENGINES[job.identity["engine"]](setup)
    with engine.env.opened(job.plan.lanes), engine:
        begin = start(engine.env)
        leaves, structure = jax.tree.flatten(begin.state)
        good = Checkpoint(to_arrays(begin.state), begin.iteration, begin.steps, in_flight=begin.in_flight)
        engine.begin(leaves, begin.in_flight)
        log = _Log(job, begin, time.monotonic() - compiling)
        try:
            while log.iteration < log.iterations and not job.stop:
                for report in engine.run(_stretch(job, log)):
                    log.add(report)
                    if not is_finite([np.asarray(value) for value in log.losses.values()]):
                        raise _not_finite(job, begin, log, good)
                if job.saver is None:
                    continue
                state = jax.tree.unflatten(structure, engine.state())
                if not is_finite(job.algorithm.params(state)):
                    raise _not_finite(job, begin, log, good)
                if job.evaluation:
                    job.evaluation.consider(log.iteration, log.steps, job.algorithm.params(state))
                how_far = log.iteration, log.steps, log.tally.return_mean
                good = Checkpoint(to_arrays(state), *how_far, engine.in_flight())
                if job.saver.due(log.iteration):
                    job.saver.save(good)
            engine.finish()
        finally:
            if job.saver:
                job.saver.save(good)
        state = jax.tree.unflatten(structure, engine.state())
        jax.block_until_ready(state)
        log.end()
        timelines, replaced = engine.timelines(), engine.replaced
    if job.saver:
        job.saver.close()
    if job.directory and window:
        keep_timeline(job.directory.path, timelines)
    result = _ended(job, log, state)
    return dataclasses.replace(result, summary=result.summary | {"replaced": replaced}) if replaced else result


def _stretch(job: Job, log: "_Log") -> int:
    """How many iterations to do before the next look around: about a second's, and not past the next checkpoint or
    evaluation."""
    left = log.iterations - log.iteration
    if job.saver is None:
        return left
    due = [job.saver.every, job.evaluation.every if job.evaluation else 0]
    ahead = min((every - log.iteration % every for every in due if every), default=left)
    done = log.iteration - log.began
    fits = int(STRETCH_SECONDS * done / max(log.seconds, 1e-9)) if done else 1
    return max(1, min(left, fits, ahead))


def _steps_each(job: Job) -> int:
    """Steps of an iteration. Where a learner takes one replica's part at a time, an iteration is one part."""
    return job.algorithm.steps_per_iteration // job.plan.arrivals


def _iterations(job: Job, done: int) -> int:
    """How many are left after so many steps."""
    return -(-(job.algorithm.total_steps - done) // _steps_each(job))


class _Log:
    """What is known of a run so far."""

    def __init__(self, job: Job, begin: Start, compile_seconds: float) -> None:
        self._job, self.compile_seconds = job, compile_seconds
        self._steps_each = _steps_each(job)
        self.began = self.iteration = begin.iteration
        self._steps_before = self.steps = begin.steps
        self.iterations = begin.iteration + _iterations(job, begin.steps)
        self.records: list[dict[str, Any]] = []
        """Where no file has them."""
        self.losses: dict[str, Any] = {}
        seeds = len(job.algorithm.seeds) if isinstance(job.algorithm, Seeds) else 0
        self.tally, self._seeds = SeedTally(seeds) if seeds else Tally(), max(1, seeds)
        for record in begin.records:
            self.tally.recall(record)
        self._seconds_before = begin.records[-1]["seconds"] if begin.records else 0.0
        self.lags = self.lag_total = self.lag_most = 0
        self.dropped = 0
        self.seconds = 0.0
        self._measures = Measures()
        self._running = time.monotonic()
        if job.watcher:
            job.watcher.compiled(compile_seconds)

    def add(self, report: Any) -> None:
        """Count an iteration, keep its record, and show how far it is."""
        values = jax.device_get(report.metrics)
        metrics = {name: values[i] for i, name in enumerate(self._job.plan.graph.metric_names)}
        self.losses = {name: value for name, value in metrics.items() if name not in ("returns", "lengths")}
        self.steps += self._steps_each
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
        if self._job.metrics:
            self._job.metrics.add(record)
        else:
            self.records.append(record)
        if self._job.watcher:
            rate, mean = record["steps_per_second"], self.tally.return_mean
            self._job.watcher.progressed(Progress(self.iteration, self.iterations, self.steps, rate, mean, record))

    def end(self) -> None:
        """The last iteration's results are there."""
        self.seconds = time.monotonic() - self._running

    @property
    def rate(self) -> float:
        """Steps per second, since this start."""
        return self._seeds * (self.steps - self._steps_before) / max(self.seconds, 1e-9)


def _ended(job: Job, log: _Log, state: Any) -> Result:
    params = job.algorithm.params(state)
    summary = {
        **job.identity,
        "total_steps": log.steps,
        "iterations": log.iteration,
        "steps_per_second": round(log.rate, 1),
        "compile_seconds": round(log.compile_seconds, 3),
        "wall_seconds": round(time.monotonic() - job.started, 3),
        "return_mean": log.tally.return_mean,
        "params_sha256": sha256(params),
    }
    env = job.setup.env
    if isinstance(env, HostEnvironment) and env.pool.restarted:
        summary["env_restarts"] = env.pool.restarted
    if log.lags:
        summary |= {"lag_mean": round(log.lag_total / log.lags, 3), "lag_max": log.lag_most}
        summary["dropped"] = log.dropped
    if job.stop.signal is not None and log.iteration < log.iterations:
        assert job.directory is not None
        name, path = signal.Signals(job.stop.signal).name, job.directory.path
        saved = f"saved after {log.steps:,} of {job.algorithm.total_steps:,} steps"
        raise StoppedError(job.stop.signal, f"{name}: {saved}; go on with: fragmenta resume {path}")
    if isinstance(job.algorithm, Seeds) and isinstance(log.tally, SeedTally):
        summary["per_seed"] = seed_summaries(job.algorithm, params, log.tally)
    kept = KeptRecords(job.directory.path / "metrics.jsonl", log.began) if job.directory else log.records
    return Result(params, state, kept, summary)


def _not_finite(job: Job, begin: Start, log: _Log, good: Checkpoint) -> NotFiniteError:
    """What to say of numbers that are none: who made them, what is kept, how to go on."""
    wrong = [n for n, value in log.losses.items() if not is_finite([np.asarray(value)])] or ["parameters"]
    stage = None
    env = job.setup.env
    if not isinstance(env, HostEnvironment):  # those have moved on and cannot do it again
        state = from_arrays(begin.state, good.arrays, "the last good state")
        stage = first_bad_stage(job.algorithm, env, job.plan.graph, state, log.iteration - good.iteration)
    made = f"stage '{stage}' made NaN or infinity from numbers" if stage else "NaN or infinity appeared"
    what = f"{made} in iteration {log.iteration - 1} ({', '.join(wrong)})"
    if job.saver is None or job.directory is None:
        return NotFiniteError(f"{what}: try a smaller learning rate")
    kept = f"the state after iteration {good.iteration} is saved"
    path = job.directory.path
    otherwise = f"in Python, fragmenta.resume('{path}', algorithm=...) does so with a smaller learning rate"
    return NotFiniteError(f"{what}; {kept}: fragmenta resume {path} goes on from there; {otherwise}")
