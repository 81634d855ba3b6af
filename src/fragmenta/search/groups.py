"""Train the trials of a sweep in groups: those that differ only in traced numbers form one program."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.runs.checkpoints import Checkpoint, CheckpointFolder
from fragmenta.search.population import exchange, next_exchange
from fragmenta.search.program import Program, Row, Training, row_of
from fragmenta.search.ranges import Range
from fragmenta.search.trials import Proposal, Trial, curve_of, mean_curve
from fragmenta.search.variants import traceable_fields
from fragmenta.tracing.iteration import TOTALS
from fragmenta.training.blame import is_finite
from fragmenta.training.stopping import Stop

SAVE_SECONDS = 60.0
MEMBERS = "members"
"""The array of a checkpoint with the values of a population, as JSON."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Trials that differ only in the numbers of the traced fields."""

    proposals: tuple[Proposal, ...]
    traced: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class GroupResult:
    """The trials of a group, and their states and metrics: rows are trials, and within them seeds."""

    trials: list[Trial]
    rows: list[Row]
    state: Any
    metrics: dict[str, np.ndarray]
    seconds: np.ndarray

    def best_row(self, trial: Trial) -> int:
        """The row of a trial's best seed."""
        first = self.trials.index(trial) * len(trial.per_seed)
        scores = [-np.inf if value is None else value for value in trial.per_seed]
        return first + int(np.argmax(scores))


Report = Callable[[int, int, float | None], None]
"""Called with the steps done per trial, the steps in total, and the best return so far."""


class Programs:
    """How the trials of a sweep form groups, and the programs that train these: kept, so that the next batch of trials
    need not trace and compile again."""

    def __init__(self, algorithm: Algorithm, env: Environment) -> None:
        self.algorithm, self._env = algorithm, env
        self._traced: dict[Any, tuple[str, ...] | None] = {}
        self._programs: dict[Any, Program] = {}

    def groups(self, proposals: Sequence[Proposal]) -> list[Group] | None:
        """The proposals in groups, each of which can be one program; None if trials cannot share a program."""
        groups: list[Group] = []
        if self._env.host_pool:
            return None
        for kind, alike in _alike(proposals, lambda _, value: not isinstance(value, float)):
            if kind not in self._traced:
                names = list(alike[0].values)
                self._traced[kind] = traceable_fields(alike[0].applied(self.algorithm), self._env, names)
            traced = self._traced[kind]
            if traced is None:
                return None
            parts = _alike(alike, lambda name, _, traced=traced: name not in traced)
            groups += [Group(tuple(part), traced) for _, part in parts]
        return groups

    def of(self, group: Group) -> Program:
        """The program that trains a group."""
        kind = group.traced, tuple(v for name, v in group.proposals[0].values.items() if name not in group.traced)
        if kind not in self._programs:
            template = group.proposals[0].applied(self.algorithm)
            self._programs[kind] = Program(template, group.traced, self._env)
        return self._programs[kind]


def _alike(
    proposals: Sequence[Proposal], decides: Callable[[str, Any], bool]
) -> list[tuple[tuple[Any, ...], list[Proposal]]]:
    """The proposals by the values that decide."""
    parts: dict[tuple[Any, ...], list[Proposal]] = {}
    for proposal in proposals:
        kind = tuple((name, value) for name, value in proposal.values.items() if decides(name, value))
        parts.setdefault(kind, []).append(proposal)
    return list(parts.items())


@dataclasses.dataclass(frozen=True)
class GroupRun:
    """How to train a group: with which seeds, where to save, when to stop, whom to tell."""

    seeds: tuple[int, ...]
    folder: Path
    """Where checkpoints go."""
    stop: Stop
    report: Report
    population: dict[str, Range] | None = None
    """For population-based training, the ranges in which values may move."""


def train_group(programs: Programs, group: Group, run: GroupRun) -> GroupResult | None:
    """Train a group from its checkpoint if it has one; None if it was stopped, after saving a checkpoint."""
    program, members = programs.of(group), list(group.proposals)
    changes: list[list[Any]] = [[] for _ in members]
    folder, saved = CheckpointFolder(run.folder, keep_last=1, keep_best=False), None
    if run.folder.exists():
        saved = folder.newest()
        stored = json.loads(saved.arrays[MEMBERS].tobytes())
        members = [Proposal(m.number, values) for m, values in zip(members, stored["values"], strict=True)]
        changes = stored["changes"]
    # The members of a population must draw different random numbers: they may come to share their parameters.
    apart = run.population is not None
    rows = [
        Row(member.applied(programs.algorithm), seed + (member.number if apart else 0))
        for member in members
        for seed in run.seeds
    ]
    training = Training(program, rows, saved)
    last_saved = time.monotonic()
    while not training.finished:
        until = next_exchange(training.iteration, program.iterations) if apart else None
        training.advance(until)
        if run.population is not None and training.iteration == until and not training.finished:
            before = members
            members = exchange(training, members, run.population, run.seeds[0])
            for i, (old, new) in enumerate(zip(before, members, strict=True)):
                if old is not new:
                    changes[i].append([training.steps, new.values])
        if not training.finished and (run.stop or time.monotonic() - last_saved > SAVE_SECONDS):
            folder.save(_checkpoint(training, members, changes))
            last_saved = time.monotonic()
            if run.stop:
                return None
        run.report(training.steps, program.template.total_steps, _best(training))
    return _result(training, members, changes, len(run.seeds))


def _checkpoint(training: Training, members: list[Proposal], changes: list[list[Any]]) -> Checkpoint:
    checkpoint = training.checkpoint()
    text = json.dumps({"values": [member.values for member in members], "changes": changes})
    arrays = checkpoint.arrays | {MEMBERS: np.frombuffer(text.encode(), np.uint8)}
    return dataclasses.replace(checkpoint, arrays=arrays)


def _best(training: Training) -> float | None:
    """The highest mean return of an iteration, over its rows."""
    episodes, returns = (training.metrics[name][-1] for name in TOTALS[:2])
    means = returns[episodes > 0] / episodes[episodes > 0]
    return float(np.nanmax(means)) if np.isfinite(means).any() else None


def _result(training: Training, members: list[Proposal], changes: list[list[Any]], seeds: int) -> GroupResult:
    state, per_iteration = training.state, training.program.steps_per_iteration
    episodes, returns, _ = TOTALS
    trials = []
    for i, member in enumerate(members):
        rows = range(i * seeds, (i + 1) * seeds)
        curves = [
            curve_of(training.metrics[episodes][:, r], training.metrics[returns][:, r], per_iteration) for r in rows
        ]
        finite = [is_finite(training.program.template.params(row_of(state, r))) for r in rows]
        per_seed = tuple(c[-1][1] if c and good else None for c, good in zip(curves, finite, strict=True))
        numbers = [value for value in per_seed if value is not None]
        mean = sum(numbers) / seeds if len(numbers) == seeds else None
        changed = tuple((steps, values) for steps, values in changes[i])
        diverged = not all(finite)
        trials.append(
            Trial(member.number, member.values, mean, per_seed, diverged, training.steps, mean_curve(curves), changed)
        )
    return GroupResult(trials, training.rows, state, training.metrics, training.seconds)
