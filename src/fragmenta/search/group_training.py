"""Train a group of trials as one program, from its checkpoint if it has one."""

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.state import to_arrays
from fragmenta.search.groups import Programs, Task, TrialGroup
from fragmenta.search.population import exploit_and_explore, next_exchange
from fragmenta.search.program import Row, Training, row_of
from fragmenta.search.trials import Proposal, Trial, curve_of, mean_curve, ranked
from fragmenta.tracing.iteration import TOTALS
from fragmenta.training.blame import is_finite

SAVE_SECONDS = 60.0
MEMBERS = "members"
"""The array of a checkpoint with the values of a population, as JSON."""
OnProgress = Callable[[int, int, float | None], None]
"""Called with the steps done per trial, the steps in total, and the best return so far."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """The best seed of the best trial of a group, with what a run directory needs of it."""

    trial: Trial
    seed: int
    return_mean: float
    state: dict[str, np.ndarray]
    metrics: dict[str, np.ndarray]
    """By name, one value per iteration."""
    seconds: np.ndarray
    """When each iteration was done, counted from the start of training."""


@dataclasses.dataclass(frozen=True)
class GroupResult:
    """The finished trials of a group, and the best of them; None if none has a return."""

    trials: list[Trial]
    candidate: Contender | None


@dataclasses.dataclass(frozen=True)
class GroupRun:
    """How a group is trained: its checkpoint, where later ones go, when to stop, and what to call with the progress."""

    saved: Checkpoint | None
    save: Callable[[Checkpoint], Any]
    stop: Callable[[], bool]
    report: OnProgress


def train_group(task: Task, programs: Programs, group: TrialGroup, run: GroupRun) -> GroupResult | None:
    """Train a group; None if it was stopped, after saving a checkpoint."""
    program, members = programs.of(group), list(group.proposals)
    changes: list[list[Any]] = [[] for _ in members]
    if run.saved:
        stored = json.loads(run.saved.arrays[MEMBERS].tobytes())
        members = [Proposal(m.number, values) for m, values in zip(members, stored["values"], strict=True)]
        changes = stored["changes"]
    # The members of a population must draw different random numbers: they may come to share their parameters.
    apart = task.population is not None
    rows = [
        Row(member.applied(task.algorithm), seed + (member.number if apart else 0))
        for member in members
        for seed in task.seeds
    ]
    training = Training(program, rows, run.saved)
    last_saved = time.monotonic()
    while not training.finished:
        until = next_exchange(training.iteration, program.iterations) if apart else None
        training.advance(until)
        if task.population is not None and training.iteration == until and not training.finished:
            before = members
            members = exploit_and_explore(training, members, task.population, task.seeds[0])
            for i, (old, new) in enumerate(zip(before, members, strict=True)):
                if old is not new:
                    changes[i].append([training.steps, new.values])
        stop = run.stop()
        if not training.finished and (stop or time.monotonic() - last_saved > SAVE_SECONDS):
            run.save(_checkpoint(training, members, changes))
            last_saved = time.monotonic()
            if stop:
                return None
        run.report(training.steps, program.template.total_steps, _best(training))
    return _result(training, members, changes, len(task.seeds))


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
    return GroupResult(trials, _candidate(training, trials))


def _candidate(training: Training, trials: list[Trial]) -> Contender | None:
    best = ranked(trials)[0]
    if best.return_mean is None:
        return None
    scores = [-np.inf if value is None else value for value in best.per_seed]
    place = int(np.argmax(scores))
    row = trials.index(best) * len(scores) + place
    metrics = {name: values[:, row] for name, values in training.metrics.items()}
    state = to_arrays(row_of(training.state, row), training.program.template.rebuildable)
    return Contender(best, training.rows[row].seed, float(scores[place]), state, metrics, training.seconds)
