"""How fast a candidate of the planner is when it is run here."""

import dataclasses
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.envs import EnvOptions
from fragmenta.planner.search import Prediction
from fragmenta.training.options import RunOptions
from fragmenta.training.train import train

LEFT_OUT = 1 / 3
"""The first share of a run, in which bursts grow and caches fill, does not count."""
FEWEST = 6
"""Iterations of a run, at least."""


def measured_rate(algorithm: Algorithm, env: str, options: EnvOptions, prediction: Prediction, seconds: float) -> float:
    """The steps per second of training under a candidate, without compiling and the first third; it runs for about so
    many seconds if it is as fast as predicted."""
    candidate = prediction.candidate
    seconds = max(seconds, FEWEST * prediction.simulation.seconds)
    stepped = dataclasses.replace(options, env_mode=candidate.env_mode or options.env_mode)
    result = train(
        dataclasses.replace(algorithm, total_steps=round(prediction.steps_per_second * seconds)),
        env,
        candidate.policy,
        candidate.engine,
        cluster=candidate.cluster,
        options=RunOptions(env=stepped, merge=candidate.merge),
        progress=False,
    )
    return steady_rate(result.metrics)


def steady_rate(records: Any) -> float:
    """The steps per second of a run from its records, without the first third of the time."""
    last = records[-1]
    first = next((r for r in records if r["seconds"] >= LEFT_OUT * last["seconds"]), records[0])
    if first is last:
        return last["steps"] / last["seconds"]
    return (last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"])
