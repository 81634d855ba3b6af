"""What a run left in its directory, as far as it got."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.errors import ConfigError
from fragmenta.runs.episode_statistics import RecentEpisodes, best_return
from fragmenta.runs.run_directory import read_config, read_json, read_records

SPEED_STRETCHES = 60
"""Into how many stretches of time a run is cut for its speed, at most."""
SHORTEST_STRETCH = 0.25
"""Seconds. One launch may hold a tenth of a second of iterations, which are all reported at its end."""


@dataclasses.dataclass(frozen=True)
class Series:
    """Values against environment steps."""

    steps: np.ndarray
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """A run's configuration, its records by iteration, and whatever else there is."""

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
    """Read a run directory; the run may still go on, or have been killed in the middle of a line."""
    path = Path(path)
    config = read_config(path)
    if not isinstance(config, dict) or not {"algorithm", "env", "policy", "hyper_parameters"} <= set(config):
        raise ConfigError(
            f"'{path / 'config.json'}' does not say algorithm, env, policy and hyper_parameters: it was changed by "
            f"hand, take it from a backup"
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
    """The mean return over the latest episodes, as the summary says it at the end."""
    recent, steps, values = RecentEpisodes(), [], []
    for record in run.records:
        if record.get("episodes") and record.get("return_mean") is not None:
            recent.add(record["episodes"], record["return_mean"] * record["episodes"])
            steps.append(record["steps"])
            values.append(recent.return_mean)
    return Series(np.asarray(steps, float), np.asarray(values, float))


def highest_return(run: RunFiles) -> float | None:
    """The highest mean over the latest episodes; None before there were enough of them."""
    best = best_return([record for record in run.records if record.get("episodes")])
    return best if math.isfinite(best) else None


def series(run: RunFiles, name: str) -> Series:
    """One metric of a run, where it is a number."""
    found = [(r["steps"], r[name]) for r in run.records if is_number(r.get(name))]
    steps, values = zip(*found, strict=True) if found else ((), ())
    return Series(np.asarray(steps, float), np.asarray(values, float))


def speed(run: RunFiles) -> Series:
    """Steps per second over stretches of time, at their ends; the first begins with the run, the last ends with it."""
    stretch = max(SHORTEST_STRETCH, run.records[-1].get("seconds", 0.0) / SPEED_STRETCHES)
    before, then = 0, 0.0
    steps, values = [], []
    for record in run.records:
        now = record.get("seconds", then)
        if now < then:  # the clock of a run that was resumed starts again
            before, then = record["steps"], now
        elif now - then >= stretch:
            steps.append(record["steps"])
            values.append((record["steps"] - before) / (now - then))
            before, then = record["steps"], now
    whole = steps_per_second(run)
    if not values and whole is not None:
        steps, values = [run.records[-1]["steps"]], [whole]
    if values:
        steps = [0, *steps, run.records[-1]["steps"]]
        values = [values[0], *values, values[-1]]
    return Series(np.asarray(steps, float), np.asarray(values, float))


def steps_per_second(run: RunFiles) -> float | None:
    """Over the whole run."""
    if run.summary and "steps_per_second" in run.summary:
        return run.summary["steps_per_second"]
    last = run.records[-1]
    return last["steps"] / last["seconds"] if last.get("seconds") else None


def is_number(value: Any) -> bool:
    """Whether a value can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _latest(path: Path) -> list[dict[str, Any]]:
    """The records of a file, the latest of each kind: a run that was resumed has gone through some iterations twice."""
    found = {(record["steps"], record.get("deterministic")): record for record in read_records(path)}
    return [found[kind] for kind in sorted(found)]
