"""Compare runs, in groups that differ in nothing but their seed."""

import dataclasses
import json
from typing import Any

import numpy as np

from fragmenta.pictures.intervals import Estimate, estimate
from fragmenta.pictures.run_files import RunFiles, highest_return, recent_returns, steps_per_second

GRID_POINTS = 120
NOT_A_SETTING = {
    "algorithm",
    "env",
    "policy",
    "seed",
    "version",
    "schema",
    "deadline",
    "only_in_python",
    "start_from",
    "tracking",
}
"""Keys of `config.json` that do not make two runs different experiments, or have their own place in the label."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one experiment, their curve on a grid of steps, and their final returns."""

    label: str
    env: str
    runs: tuple[RunFiles, ...]
    steps: np.ndarray
    curve: Estimate
    final: Estimate
    """One column: each run's mean return over its latest episodes."""

    @property
    def best(self) -> float | None:
        """The highest mean return over the latest episodes in any of its runs."""
        returns = [best for run in self.runs if (best := highest_return(run)) is not None]
        return max(returns, default=None)

    @property
    def steps_per_second(self) -> float | None:
        """The median over its runs."""
        rates = [rate for run in self.runs if (rate := steps_per_second(run)) is not None]
        return float(np.median(rates)) if rates else None


@dataclasses.dataclass(frozen=True)
class Arrival:
    """When runs first reached a return: medians over the `reached` runs that did."""

    reached: int
    steps: float
    seconds: float


def group_runs(runs: list[RunFiles]) -> list[Group]:
    """Group runs that differ only in their seed, and label each group by what distinguishes it."""
    members: dict[str, list[RunFiles]] = {}
    for run in runs:
        key = [*_identity(run), _placement(run), _choices(run)]
        members.setdefault(json.dumps(key, sort_keys=True), []).append(run)
    firsts = [group[0] for group in members.values()]
    labels = {id(first): _label(first, firsts) for first in firsts}
    return [_group(labels[id(group[0])], group) for group in members.values()]


def target_return(groups: list[Group], env: str, share: float) -> float:
    """The return at a given share of the way from the initial return of runs to the best final return of any group."""
    same_env = [group for group in groups if group.env == env]
    start = float(np.median([recent_returns(run).values[0] for group in same_env for run in group.runs]))
    best = max(float(group.final.middle[0]) for group in same_env)
    return start + share * (best - start)


def arrival(group: Group, target: float) -> Arrival | None:
    """When the runs of a group first reached a return; None if none did."""
    arrivals = []
    for run in group.runs:
        recent = recent_returns(run)
        above = np.flatnonzero(recent.values >= target)
        if len(above):
            steps = recent.steps[above[0]]
            seconds = next(r.get("seconds", float("nan")) for r in run.records if r["steps"] == steps)
            arrivals.append((steps, seconds))
    if not arrivals:
        return None
    steps, seconds = np.median(np.asarray(arrivals, float), axis=0)
    return Arrival(len(arrivals), float(steps), float(seconds))


def remarks(groups: list[Group]) -> list[str]:
    """Caveats about the intervals and curves."""
    lines = []
    for group in groups:
        seeds = [run.config.get("seed") for run in group.runs]
        repeated = sorted({str(seed) for seed in seeds if seeds.count(seed) > 1})
        if repeated:
            lines.append(
                f"{group.label}: seed {', '.join(repeated)} more than once, but the intervals assume independent runs"
            )
        ends = [run.records[-1]["steps"] for run in group.runs]
        for run, end in zip(group.runs, ends, strict=True):
            if end < max(ends):
                lines.append(f"{group.label}: the curve ends at {end:,} steps, as {run.path} does")
    return lines


def _identity(run: RunFiles) -> tuple[str, str, str]:
    return run.config["algorithm"], run.config["env"], run.config["policy"]


def _placement(run: RunFiles) -> dict[str, Any]:
    """Settings of where and how the run was executed."""
    return {k: v for k, v in run.config.items() if k not in NOT_A_SETTING and not isinstance(v, dict)}


def _choices(run: RunFiles) -> dict[str, Any]:
    """Settings of the algorithm and the environment, by name."""
    groups = [group for name, group in run.config.items() if isinstance(group, dict) and name not in NOT_A_SETTING]
    start = run.config.get("start_from") or {"run": "none"}
    return {k: v for group in groups for k, v in group.items()} | {"start_from": start["run"]}


def _label(run: RunFiles, others: list[RunFiles]) -> str:
    """Algorithm and distribution policy if they differ between runs, then the other settings that differ.

    Hyper-parameters are compared with all runs of the algorithm, replicas and similar settings with those of the
    distribution policy.
    """
    algorithm, env, policy = _identity(run)
    parts = []
    if len({other.config["algorithm"] for other in others}) > 1:
        parts.append(algorithm)
    if len({other.config["policy"] for other in others}) > 1:
        parts.append(policy)
    same_algorithm = [other for other in others if _identity(other)[:2] == (algorithm, env)]
    same_policy = [other for other in same_algorithm if other.config["policy"] == policy]
    parts += _differing(_placement(run), [_placement(other) for other in same_policy])
    parts += _differing(_choices(run), [_choices(other) for other in same_algorithm])
    return ", ".join(parts) or f"{algorithm}, {policy}"


def _differing(settings: dict[str, Any], others: list[dict[str, Any]]) -> list[str]:
    names = [name for name in settings if any(name in other and other[name] != settings[name] for other in others)]
    return [f"{name} {_text(settings[name])}" for name in names]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ("x" if all(isinstance(part, int) for part in value) else "+").join(map(str, value)) or "none"
    return str(value)


def _group(label: str, runs: list[RunFiles]) -> Group:
    curves = [recent_returns(run) for run in runs]
    start, end = max(c.steps[0] for c in curves), min(c.steps[-1] for c in curves)
    steps = np.linspace(start, max(start, end), GRID_POINTS)
    scores = np.stack([np.interp(steps, curve.steps, curve.values) for curve in curves])
    finals = np.asarray([[curve.values[-1]] for curve in curves])
    both = estimate(np.concatenate([scores, finals], axis=1))
    return Group(
        label=label,
        env=runs[0].config["env"],
        runs=tuple(runs),
        steps=steps,
        curve=both.columns(slice(None, -1)),
        final=both.columns(slice(-1, None)),
    )
