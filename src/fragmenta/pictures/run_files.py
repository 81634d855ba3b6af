"""Read the files of a run, finished or not, for pictures and reports."""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.errors import ConfigError
from fragmenta.runs.episode_statistics import RecentEpisodes, best_return
from fragmenta.runs.run_directory import EVALUATIONS, read_config, read_json, read_records
from fragmenta.runs.seeds import record_of_seed

SPEED_STRETCHES = 60
"""Maximum number of time intervals for the speed of a run."""
SHORTEST_STRETCH = 0.25
"""In seconds. One burst may contain a tenth of a second of iterations, which are all reported at its end."""


@dataclasses.dataclass(frozen=True)
class Series:
    """Values against environment steps; over several seeds their means, with the lowest and the highest."""

    steps: np.ndarray
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """A run's configuration, its records by iteration, and its other files if they exist."""

    path: Path
    config: dict[str, Any]
    records: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    summary: dict[str, Any] | None
    """None if the run did not finish."""
    graph: str | None

    @property
    def title(self) -> str:
        """`ppo on CartPole-v1`."""
        return f"{self.config['algorithm']} on {self.config['env']}"

    @property
    def placement(self) -> str:
        """`single_learner_fine, 2 replicas`."""
        replicas = self.config.get("replicas", 1)
        return f"{self.config['policy']}, {replicas} replica{'s' if replicas != 1 else ''}"

    @property
    def seed_words(self) -> str:
        """`seed 3`, or `seeds 0 to 4`."""
        first, count = self.config.get("seed", "-"), self.config.get("seeds", 1)
        return f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"

    @functools.cached_property
    def by_seed(self) -> "tuple[RunFiles, ...]":
        """The run of every seed as if it had been trained alone; only the run itself if it has one seed."""
        count = self.config.get("seeds", 1)
        if count == 1:
            return (self,)
        return tuple(self._of_seed(i, count) for i in range(count))

    def _of_seed(self, index: int, count: int) -> "RunFiles":
        seed = self.config["seed"] + index
        summary = self.summary and {
            **self.summary,
            **self.summary["per_seed"][index],
            "steps_per_second": self.summary["steps_per_second"] / count,
        }
        return dataclasses.replace(
            self,
            path=self.path / f"seed-{seed}",
            config=self.config | {"seed": seed, "seeds": 1},
            records=[record_of_seed(record, index) for record in self.records],
            evaluations=[record_of_seed(record, index) for record in self.evaluations if "per_seed" in record],
            summary=summary,
        )


def read_run_files(path: str | Path) -> RunFiles:
    """Read a run directory; the run may still be running, or have been killed in the middle of a line."""
    path = Path(path)
    config = read_config(path)
    if not isinstance(config, dict) or not {"algorithm", "env", "policy", "hyper_parameters"} <= set(config):
        raise ConfigError(
            f"'{path / 'config.json'}' lacks algorithm, env, policy or hyper_parameters: it was edited by "
            f"hand, restore it from a backup"
        )
    if not (path / "metrics.jsonl").exists():
        raise ConfigError(f"run '{path}' has no metrics.jsonl: there is nothing to draw, so train again")
    records = _latest(path / "metrics.jsonl")
    if not records:
        raise ConfigError(f"metrics.jsonl of run '{path}' is empty: wait for its first iteration, or train again")
    evaluations = _latest(path / EVALUATIONS) if (path / EVALUATIONS).exists() else []
    evaluations = [evaluation for evaluation in evaluations if is_number(evaluation.get("return_mean"))]
    graph = path / "graph.mmd"
    return RunFiles(
        path=path,
        config=config,
        records=records,
        evaluations=evaluations,
        summary=read_json(path / "summary.json"),
        graph=graph.read_text() if graph.exists() else None,
    )


def returns(run: RunFiles) -> Series:
    """The mean return of the episodes that each iteration finished."""
    return series(run, "return_mean")


def recent_returns(run: RunFiles) -> Series:
    """The mean return over the latest episodes, as in the summary."""
    if len(run.by_seed) > 1:
        return _over_seeds([recent_returns(one) for one in run.by_seed])
    recent, steps, values = RecentEpisodes(), [], []
    for record in run.records:
        if record.get("episodes") and record.get("return_mean") is not None:
            recent.add(record["episodes"], record["return_mean"] * record["episodes"])
            steps.append(record["steps"])
            values.append(recent.return_mean)
    return Series(np.asarray(steps, float), np.asarray(values, float))


def highest_return(run: RunFiles) -> float | None:
    """The highest mean return over the latest episodes, of several seeds the mean; None before there are enough."""
    if len(run.by_seed) > 1:
        each = [best for one in run.by_seed if (best := highest_return(one)) is not None]
        return float(np.mean(each)) if len(each) == len(run.by_seed) else None
    best = best_return([record for record in run.records if record.get("episodes")])
    return best if math.isfinite(best) else None


def series(run: RunFiles, name: str) -> Series:
    """One metric of a run, at the records where it is a number."""
    if len(run.by_seed) > 1 and any(name in record["per_seed"] for record in run.records):
        return _over_seeds([series(one, name) for one in run.by_seed])
    points = [(r["steps"], r[name]) for r in run.records if is_number(r.get(name))]
    steps, values = zip(*points, strict=True) if points else ((), ())
    return Series(np.asarray(steps, float), np.asarray(values, float))


def speed(run: RunFiles) -> Series:
    """Steps per second over time intervals, at their ends; extended to the start and the end of the run."""
    seeds = run.config.get("seeds", 1)  # the steps in the records are those of one seed
    stretch = max(SHORTEST_STRETCH, run.records[-1].get("seconds", 0.0) / SPEED_STRETCHES)
    start_steps, start = 0, 0.0
    steps, values = [], []
    for record in run.records:
        now = record.get("seconds", start)
        if now < start:  # the clock of a resumed run starts again
            start_steps, start = record["steps"], now
        elif now - start >= stretch:
            steps.append(record["steps"])
            values.append(seeds * (record["steps"] - start_steps) / (now - start))
            start_steps, start = record["steps"], now
    overall = steps_per_second(run)
    if not values and overall is not None:
        steps, values = [run.records[-1]["steps"]], [overall]
    if values:
        steps = [0, *steps, run.records[-1]["steps"]]
        values = [values[0], *values, values[-1]]
    return Series(np.asarray(steps, float), np.asarray(values, float))


def clock(run: RunFiles) -> Callable[[np.ndarray], np.ndarray]:
    """From steps to seconds of training at which the run reached them; a resumed run continues the clock."""
    points, before, last = [(0.0, 0.0)], 0.0, 0.0
    for record in run.records:
        now = record.get("seconds", last)
        before += last if now < last else 0.0  # the clock of a resumed run starts again
        last = now
        points.append((record["steps"], before + now))
    steps, seconds = np.asarray(points, float).T
    return lambda at: np.interp(at, steps, seconds)


def steps_per_second(run: RunFiles) -> float | None:
    """Steps per second over the whole run."""
    if run.summary and "steps_per_second" in run.summary:
        return run.summary["steps_per_second"]
    last = run.records[-1]
    return run.config.get("seeds", 1) * last["steps"] / last["seconds"] if last.get("seconds") else None


def is_number(value: Any) -> bool:
    """Whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _over_seeds(each: list[Series]) -> Series:
    """Means and range of several series, where all of them have values."""
    if not all(len(one.steps) for one in each):
        return Series(np.zeros(0), np.zeros(0))
    steps = np.unique(np.concatenate([one.steps for one in each]))
    first, last = max(one.steps[0] for one in each), min(one.steps[-1] for one in each)
    steps = steps[(steps >= first) & (steps <= last)]
    rows = np.stack([np.interp(steps, one.steps, one.values) for one in each])
    return Series(steps, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))


def _latest(path: Path) -> list[dict[str, Any]]:
    """The records of a file, the latest for each step: a resumed run has repeated some iterations."""
    latest = {(record["steps"], record.get("deterministic")): record for record in read_records(path)}
    return [latest[kind] for kind in sorted(latest)]
