"""Trials: the values that each one tries, its results, and the files that store both."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.runs.episode_statistics import RecentEpisodes
from fragmenta.runs.metrics import JsonLines
from fragmenta.runs.run_directory import read_json, read_records, write_whole

FINISHED, PENDING = "trials.jsonl", "pending.json"
CURVE_POINTS = 100
"""Points of a trial's learning curve that are kept."""


@dataclasses.dataclass(frozen=True)
class Proposal:
    """The values that a trial will try, by field."""

    number: int
    values: dict[str, Any]

    def applied(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with these values."""
        return dataclasses.replace(algorithm, **self.values)


@dataclasses.dataclass(frozen=True)
class Trial:
    """A finished trial: its values, its return over the latest episodes as the mean over its seeds, and its curve."""

    number: int
    values: dict[str, Any]
    return_mean: float | None
    """None if no episode ended, or if the parameters of a seed became NaN or Inf."""
    per_seed: tuple[float | None, ...]
    diverged: bool
    steps: int
    curve: tuple[tuple[int, float], ...] = dataclasses.field(repr=False)
    """Environment steps, and the mean return of the latest episodes then."""
    changes: tuple[tuple[int, dict[str, Any]], ...] = ()
    """In population-based training: environment steps, and the values from then on."""

    @property
    def score(self) -> float:
        """What trials are ranked by: the return, or minus infinity without one."""
        return -math.inf if self.return_mean is None else self.return_mean


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The best trial first; of equal ones, the earlier."""
    return sorted(trials, key=lambda trial: (-trial.score, trial.number))


def curve_of(episodes: np.ndarray, returns: np.ndarray, steps_per_iteration: int) -> list[tuple[int, float]]:
    """The mean return of the latest episodes after every iteration in which one ended."""
    recent, curve = RecentEpisodes(), []
    for i, (count, total) in enumerate(zip(episodes.tolist(), returns.tolist(), strict=True)):
        recent.add(int(count), total)
        if count and recent.return_mean is not None:
            curve.append(((i + 1) * steps_per_iteration, recent.return_mean))
    return curve


def mean_curve(curves: Sequence[list[tuple[int, float]]]) -> tuple[tuple[int, float], ...]:
    """The mean of several curves at a limited number of points, from where all of them have begun."""
    if not all(curves):
        return ()
    first, last = max(curve[0][0] for curve in curves), max(curve[-1][0] for curve in curves)
    steps = np.unique(np.linspace(first, last, CURVE_POINTS).astype(int))
    values = np.mean(
        [np.interp(steps, [s for s, _ in curve], [value for _, value in curve]) for curve in curves], axis=0
    )
    return tuple(zip(steps.tolist(), values.tolist(), strict=True))


class TrialFiles:
    """The files of a sweep that a killed one continues from: finished trials, and those being trained."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def finished(self) -> list[Trial]:
        """The trials finished so far."""
        if not (self.path / FINISHED).exists():
            return []
        return [read_trial(record) for record in read_records(self.path / FINISHED)]

    def add(self, trials: Sequence[Trial]) -> None:
        """Append finished trials."""
        lines = JsonLines(self.path / FINISHED)
        try:
            lines.write([dataclasses.asdict(trial) for trial in trials])
        finally:
            lines.close()

    def pending(self, finished: Sequence[Trial]) -> list[Proposal]:
        """The batch of trials that was being trained when the sweep ended; empty if all of them had finished."""
        done = {trial.number for trial in finished}
        stored = read_json(self.path / PENDING) or []
        proposals = [Proposal(entry["number"], read_values(entry["values"])) for entry in stored]
        return proposals if any(proposal.number not in done for proposal in proposals) else []

    def expect(self, proposals: Sequence[Proposal]) -> None:
        """Note which trials are trained next."""
        entries = [dataclasses.asdict(proposal) for proposal in proposals]
        write_whole(self.path / PENDING, json.dumps(entries).encode())

    def write_tables(self, trials: Sequence[Trial]) -> None:
        """Write `trials.json` and `trials.csv`, the best trial first."""
        rows = [_row(rank, trial) for rank, trial in enumerate(ranked(trials), start=1)]
        write_whole(self.path / "trials.json", (json.dumps(rows, indent=2) + "\n").encode())
        text = io.StringIO()
        names = ["rank", "trial", *trials[0].values, "return_mean", "diverged", "steps"]
        writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **row["values"]} for row in rows)
        write_whole(self.path / "trials.csv", text.getvalue().encode())


def _row(rank: int, trial: Trial) -> dict[str, Any]:
    row: dict[str, Any] = {"rank": rank, "trial": trial.number, "values": trial.values}
    row |= {"return_mean": trial.return_mean, "per_seed": trial.per_seed}
    return row | {"diverged": trial.diverged, "steps": trial.steps}


def read_trial(record: dict[str, Any]) -> Trial:
    """The trial of a record, as `dataclasses.asdict` and JSON made it."""
    curve = tuple((int(steps), float(value)) for steps, value in record["curve"])
    changes = tuple((int(steps), read_values(values)) for steps, values in record["changes"])
    parts = {"values": read_values(record["values"]), "per_seed": tuple(record["per_seed"])}
    return Trial(**record | parts | {"curve": curve, "changes": changes})


def read_values(values: dict[str, Any]) -> dict[str, Any]:
    """Values by field; JSON has lists for tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
