"""Train a trial of a sweep as ordinary runs: for environments on the host."""

import shutil
from pathlib import Path

import numpy as np

from fragmenta.pictures.run_files import read_run_files, recent_returns
from fragmenta.search.groups import Task
from fragmenta.search.trials import Proposal, Trial, mean_curve
from fragmenta.training.options import RunOptions
from fragmenta.training.stopping import NotFiniteError
from fragmenta.training.train import train


def train_alone(task: Task, proposal: Proposal, folder: Path) -> Trial:
    """Train every seed of a trial into `folder`, as `seed-SEED`."""
    shutil.rmtree(folder, ignore_errors=True)  # of a sweep that was killed during this trial
    per_seed: list[float | None] = []
    steps = 0
    finite, curves = [], []
    applied = proposal.applied(task.algorithm)
    for seed in task.seeds:
        path = _run(folder, seed)
        try:
            settings = RunOptions(env=task.env_options, sinks=())
            result = train(applied, task.env, seed=seed, run_dir=path, options=settings, progress=False)
            summary = result.summary
            per_seed.append(summary["return_mean"])
            finite.append(True)
        except NotFiniteError:
            per_seed.append(None)
            finite.append(False)
        files = read_run_files(path)
        recent, steps = recent_returns(files), files.records[-1]["steps"]
        curves.append(list(zip(recent.steps.astype(int).tolist(), recent.values.tolist(), strict=True)))
    numbers = [value for value in per_seed if value is not None]
    mean = sum(numbers) / len(task.seeds) if len(numbers) == len(task.seeds) else None
    return Trial(proposal.number, proposal.values, mean, tuple(per_seed), not all(finite), steps, mean_curve(curves))


def best_run(task: Task, trial: Trial, folder: Path) -> Path:
    """The run directory of the best seed of a trial that was trained into `folder`."""
    place = int(np.argmax([-np.inf if value is None else value for value in trial.per_seed]))
    return _run(folder, task.seeds[place])


def _run(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}"
