"""Evaluate the policies of several seeds that were trained as one program."""

import dataclasses
from typing import Any

import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.evaluation.evaluate import Evaluation, evaluate
from fragmenta.runs.seeds import Seeds, of_seed


@dataclasses.dataclass(frozen=True)
class SeedEvaluations:
    """The evaluations of the policies of several seeds, all on the same episodes."""

    seeds: tuple[int, ...]
    each: tuple[Evaluation, ...]

    @property
    def mean(self) -> float:
        """The mean return over the seeds."""
        return float(np.mean([evaluation.mean for evaluation in self.each]))

    @property
    def interval(self) -> tuple[float, float]:
        """The mean returns of the worst and of the best seed."""
        means = [evaluation.mean for evaluation in self.each]
        return min(means), max(means)

    def as_record(self) -> dict[str, Any]:
        """As for one seed, with means over the seeds, their range as the interval, and every seed under `per_seed`."""
        records = [evaluation.as_record() for evaluation in self.each]
        per_seed = {name: [record[name] for record in records] for name in records[0]}
        low, high = self.interval
        return {
            **{name: records[0][name] for name in ("deterministic", "episodes", "seed")},
            "return_mean": self.mean,
            "return_std": float(np.std(per_seed["return_mean"], ddof=1)),
            "return_low": low,
            "return_high": high,
            "return_min": min(per_seed["return_min"]),
            "return_max": max(per_seed["return_max"]),
            "length_mean": float(np.mean(per_seed["length_mean"])),
            "length_min": min(per_seed["length_min"]),
            "length_max": max(per_seed["length_max"]),
            "unfinished": sum(per_seed["unfinished"]),
            "per_seed": per_seed,
        }


def evaluate_trained(
    trained: Algorithm,
    env: Environment,
    params: Any,
    episodes: int,
    seed: int,
    deterministic: bool,
    max_steps: int | None = None,
) -> Evaluation | SeedEvaluations:
    """Evaluate what was trained, as `evaluate` does: an algorithm, or every seed of several in turn."""
    settings = episodes, seed, deterministic, max_steps
    if not isinstance(trained, Seeds):
        return evaluate(trained, env, params, *settings)
    inner, seeds = trained.inner, trained.seeds
    each = tuple(evaluate(inner, env, of_seed(params, i), *settings) for i in range(len(seeds)))
    return SeedEvaluations(seeds, each)
