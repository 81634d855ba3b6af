"""Train the trials of a sweep one after the other, each as an ordinary run: for environments on the host."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment, EnvOptions
from fragmenta.pictures.run_files import read_run_files, recent_returns
from fragmenta.search.trials import Proposal, Trial, mean_curve
from fragmenta.training.options import RunOptions
from fragmenta.training.stopping import NotFiniteError
from fragmenta.training.train import train


def train_alone(
    algorithm: Algorithm,
    env: str | Environment,
    options: EnvOptions,
    proposal: Proposal,
    seeds: Sequence[int],
    folder: Path,
) -> tuple[Trial, Path]:
    """Train every seed of a trial into `folder`: the trial, and the run directory of its best seed."""
    shutil.rmtree(folder, ignore_errors=True)  # of a sweep that was killed during this trial
    per_seed: list[float | None] = []
    steps = 0
    finite, curves = [], []
    applied = proposal.applied(algorithm)
    for seed in seeds:
        path = folder / f"seed-{seed}"
        try:
            settings = RunOptions(env=options, sinks=())
            summary = train(applied, env, seed=seed, run_dir=path, options=settings).summary
            per_seed.append(summary["return_mean"])
            finite.append(True)
        except NotFiniteError:
            per_seed.append(None)
            finite.append(False)
        files = read_run_files(path)
        recent, steps = recent_returns(files), files.records[-1]["steps"]
        curves.append(list(zip(recent.steps.astype(int).tolist(), recent.values.tolist(), strict=True)))
    numbers = [value for value in per_seed if value is not None]
    mean = sum(numbers) / len(seeds) if len(numbers) == len(seeds) else None
    best = int(np.argmax([-np.inf if value is None else value for value in per_seed]))
    curve = mean_curve(curves)
    trial = Trial(proposal.number, proposal.values, mean, tuple(per_seed), not all(finite), steps, curve)
    return trial, folder / f"seed-{seeds[best]}"
