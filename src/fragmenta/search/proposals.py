"""Which values to try next: a grid, random ones, or those that Optuna's TPE expects to be good."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragmenta.errors import ConfigError, unknown
from fragmenta.search.ranges import Choice, Interval, Range
from fragmenta.search.trials import Proposal, Trial

Propose = Callable[[Sequence[Trial]], list[Proposal]]
"""From all trials finished so far, those to train next, as many as can be trained at once; none at the end."""

DEFAULT_TRIALS = 64
TPE_BATCHES = 8
"""TPE learns from finished trials, so its trials come in this many batches."""


def proposals(method: str, ranges: dict[str, Range], trials: int | None, seed: int) -> Propose:
    """How a method chooses values; ConfigError if it cannot."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if trials is not None and trials < 1:
        raise ConfigError(f"trials is {trials}: it must be at least 1")
    return METHODS[method](ranges, trials, seed)


def _grid(ranges: dict[str, Range], trials: int | None, _: int) -> Propose:
    points = list(itertools.product(*(values.grid(name) for name, values in ranges.items())))
    if trials not in (None, len(points)):
        raise ConfigError(f"trials is {trials}, but the grid has {len(points)} points: leave trials out")
    return _listed([dict(zip(ranges, point, strict=True)) for point in points])


def _random(ranges: dict[str, Range], trials: int | None, seed: int) -> Propose:
    draws = np.random.default_rng(seed).random((trials or DEFAULT_TRIALS, len(ranges))).tolist()
    return _listed(
        [{name: ranges[name].at(share) for name, share in zip(ranges, shares, strict=True)} for shares in draws]
    )


def _listed(all_values: list[dict[str, Any]]) -> Propose:
    """All at once, without those that are finished."""

    def propose(finished: Sequence[Trial]) -> list[Proposal]:
        done = {trial.number for trial in finished}
        return [Proposal(number, values) for number, values in enumerate(all_values) if number not in done]

    return propose


def _tpe(ranges: dict[str, Range], trials: int | None, seed: int) -> Propose:
    try:
        import optuna
    except ImportError:
        raise ConfigError("method 'tpe' needs Optuna: pip install 'fragmenta[sweep]', or use random") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    count = trials or DEFAULT_TRIALS
    # Choices go by their place in the list: Optuna stores only simple values.
    space: dict[str, Any] = {
        name: optuna.distributions.CategoricalDistribution(range(len(values.values)))
        if isinstance(values, Choice)
        else _distribution(optuna, values)
        for name, values in ranges.items()
    }

    def propose(finished: Sequence[Trial]) -> list[Proposal]:
        # A new study every time, so that a killed sweep continues like one that was not.
        sampler = optuna.samplers.TPESampler(
            seed=seed + len(finished), n_startup_trials=-(-count // TPE_BATCHES), multivariate=True, constant_liar=True,
        )  # fmt: skip
        study = optuna.create_study(direction="maximize", sampler=sampler)
        worst = min((trial.score for trial in finished if math.isfinite(trial.score)), default=0.0)
        for trial in sorted(finished, key=lambda trial: trial.number):
            params = {
                name: values.values.index(trial.values[name]) if isinstance(values, Choice) else trial.values[name]
                for name, values in ranges.items()
            }
            score = trial.score if math.isfinite(trial.score) else worst
            study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=score))
        proposed = [study.ask(space).params for _ in range(min(-(-count // TPE_BATCHES), count - len(finished)))]
        return [
            Proposal(
                len(finished) + i,
                {name: v.values[p[name]] if isinstance(v, Choice) else p[name] for name, v in ranges.items()},
            )
            for i, p in enumerate(proposed)
        ]

    return propose


def _distribution(optuna: Any, values: Interval) -> Any:
    if values.whole:
        return optuna.distributions.IntDistribution(int(values.low), int(values.high), log=values.logarithmic)
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.logarithmic)


METHODS: dict[str, Callable[[dict[str, Range], int | None, int], Propose]] = {
    "grid": _grid,
    "random": _random,
    "tpe": _tpe,
    "pbt": _random,  # where the members of a population start
}
