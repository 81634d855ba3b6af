"""The interquartile mean over seeds and its interval, computed by rliable; contains all workarounds for rliable."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from fragmenta.errors import ConfigError

REPETITIONS = 2000
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Per column of scores: the interquartile mean over runs, and its confidence interval."""

    middle: np.ndarray
    low: np.ndarray | None
    """None for a single run, which gives no estimate of the spread."""
    high: np.ndarray | None

    def columns(self, which: slice) -> "Estimate":
        """The estimate for some of the columns."""
        if self.low is None or self.high is None:
            return Estimate(self.middle[which], None, None)
        return Estimate(self.middle[which], self.low[which], self.high[which])


def estimate(scores: np.ndarray) -> Estimate:
    """Estimate from scores with a row per run; the same scores give the same interval every time."""
    if len(scores) < 2:
        return Estimate(scores[0], None, None)
    library = _rliable()
    with _fixed_randomness():
        middle, interval = library.get_interval_estimates(
            {"": scores[:, None, :]}, _interquartile_mean, reps=REPETITIONS, confidence_interval_size=CONFIDENCE
        )
    return Estimate(middle[""], *interval[""])


def _interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """rliable's `aggregate_iqm` over runs and tasks, for all columns at once."""
    ordered = np.sort(scores.reshape(-1, scores.shape[-1]), axis=0)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut].mean(axis=0)


def _rliable() -> Any:
    try:
        with _decorator_of_old_pandas():
            from rliable import library
    except ImportError:
        raise ConfigError(
            "intervals over seeds need rliable, which is not installed: pip install 'fragmenta[compare]'"
        ) from None
    return library


@contextlib.contextmanager
def _decorator_of_old_pandas() -> Iterator[None]:
    """rliable 1.2 requires arch < 8, which calls a decorator of pandas with its signature from before pandas 3."""
    from pandas.util import _decorators

    current: Any = _decorators.deprecate_kwarg

    def either(*arguments: Any, **options: Any) -> Any:
        names_first = bool(arguments) and isinstance(arguments[0], str)
        return current(FutureWarning, *arguments, **options) if names_first else current(*arguments, **options)

    if int(_pandas_version().partition(".")[0]) < 3:
        yield
        return
    _decorators.deprecate_kwarg = either
    try:
        yield
    finally:
        _decorators.deprecate_kwarg = current


def _pandas_version() -> str:
    from importlib.metadata import version

    return version("pandas")


@contextlib.contextmanager
def _fixed_randomness() -> Iterator[None]:
    """rliable 1.2 samples from numpy's global generator and ignores `random_state`."""
    state = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(state)
