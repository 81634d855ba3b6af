"""Read the files of a run, finished or not, for pictures and reports."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.errors import ConfigError
from fragmenta.runs.episode_statistics import RecentEpisodes, best_return
from fragmenta.runs.run_directory import read_config, read_json, read_records

SPEED_STRETCHES = 60
"""Maximum number of time intervals for the speed of a run."""
SHORTEST_STRETCH = 0.25
"""In seconds. One burst may contain a tenth of a second of iterations, which are all reported at its end."""


@dataclasses.dataclass(frozen=True)
class Series:
    """Values against environment steps."""

    steps: np.ndarray
    values: np.ndarray


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
    evaluations = _latest(path / "evaluations.jsonl") if (path / "evaluations.jsonl").exists() else []
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
    recent, steps, values = RecentEpisodes(), [], []
    for record in run.records:
        if record.get("episodes") and record.get("return_mean") is not None:
            recent.add(record["episodes"], record["return_mean"] * record["episodes"])
            steps.append(record["steps"])
            values.append(recent.return_mean)
    return Series(np.asarray(steps, float), np.asarray(values, float))


def highest_return(run: RunFiles) -> float | None:
    """The highest mean return over the latest episodes; None before there are enough of them."""
    best = best_return([record for record in run.records if record.get("episodes")])
    return best if math.isfinite(best) else None


def series(run: RunFiles, name: str) -> Series:
    """One metric of a run, at the records where it is a number."""
    points = [(r["steps"], r[name]) for r in run.records if is_number(r.get(name))]
    steps, values = zip(*points, strict=True) if points else ((), ())
    return Series(np.asarray(steps, float), np.asarray(values, float))


def speed(run: RunFiles) -> Series:
    """Steps per second over time intervals, at their ends; extended to the start and the end of the run."""
    stretch = max(SHORTEST_STRETCH, run.records[-1].get("seconds", 0.0) / SPEED_STRETCHES)
    start_steps, start = 0, 0.0
    steps, values = [], []
    for record in run.records:
        now = record.get("seconds", start)
        if now < start:  # the clock of a resumed run starts again
            start_steps, start = record["steps"], now
        elif now - start >= stretch:
            steps.append(record["steps"])
            values.append((record["steps"] - start_steps) / (now - start))
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
    return last["steps"] / last["seconds"] if last.get("seconds") else None


def is_number(value: Any) -> bool:
    """Whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _latest(path: Path) -> list[dict[str, Any]]:
    """The records of a file, the latest for each step: a resumed run has repeated some iterations."""
    latest = {(record["steps"], record.get("deterministic")): record for record in read_records(path)}
    return [latest[kind] for kind in sorted(latest)]
