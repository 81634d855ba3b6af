"""How fast a candidate of the planner is when it is run here."""

import contextlib
import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.engines import ProcessLocation
from fragmenta.envs import EnvOptions
from fragmenta.graph import Plan
from fragmenta.planner.search import Prediction
from fragmenta.progress.watching import Progress
from fragmenta.training.options import RunOptions
from fragmenta.training.train import train

LEFT_OUT = 1 / 3
"""The first share of a run, in which bursts grow and caches fill, does not count."""
FEWEST = 6
"""Iterations of a run, at least."""


def measured_rate(algorithm: Algorithm, env: str, options: EnvOptions, prediction: Prediction, seconds: float) -> float:
    """The steps per second of training under a candidate for about so many seconds, without compiling and the first
    third. Training is as long as the algorithm says if that suffices, so that nothing is compiled anew."""
    candidate, iteration = prediction.candidate, prediction.simulation.seconds
    least = round(prediction.steps_per_second * max(2 * seconds, FEWEST * iteration))
    trial = _Trial(max(seconds, FEWEST * iteration))
    with contextlib.suppress(_EnoughError):
        train(
            dataclasses.replace(algorithm, total_steps=max(algorithm.total_steps, least)),
            env,
            candidate.policy,
            candidate.engine,
            cluster=candidate.cluster,
            options=RunOptions(
                env=dataclasses.replace(options, env_mode=candidate.env_mode or options.env_mode), merge=candidate.merge
            ),
            watcher=trial,
        )
    return steady_rate(trial.steps, trial.seconds)


class _EnoughError(Exception):
    """A trial has taken its time."""


class _Trial:
    """A watcher that ends training after some time."""

    def __init__(self, most: float) -> None:
        self._most, self._began = most, 0.0
        self.steps: list[int] = []
        self.seconds: list[float] = []

    def planned(self, plan: Plan, algorithm: Algorithm, steps: int, environments: str) -> None: ...
    def placed(self, workers: Sequence[ProcessLocation]) -> None: ...
    def remarked(self, text: str) -> None: ...

    def compiled(self, seconds: float) -> None:
        self._began = time.monotonic()

    def progressed(self, progress: Progress) -> None:
        seconds = time.monotonic() - self._began
        if len(self.steps) >= FEWEST and seconds > self._most:
            raise _EnoughError
        self.steps.append(progress.steps)
        self.seconds.append(seconds)


def steady_rate(steps: list[int], seconds: list[float]) -> float:
    """The steps per second of a run, from the steps and seconds after every iteration. Iterations of a burst are
    reported at once, so it is the slope through all of them, not between two."""
    first = next(i for i, second in enumerate(seconds) if second >= LEFT_OUT * seconds[-1])
    if seconds[first] == seconds[-1]:
        return steps[-1] / seconds[-1]
    return 1.0 / float(np.polyfit(steps[first:], seconds[first:], 1)[0])
