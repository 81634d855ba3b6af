"""Episode statistics from an iteration's metrics."""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from fragmenta.tracing.iteration import TOTALS

WINDOW = 100
"""The mean return covers at least this many of the latest episodes, once there are as many."""


class RecentEpisodes:
    """Mean return over the latest episodes, from each iteration's number of finished episodes and sum of returns."""

    def __init__(self) -> None:
        self._recent: collections.deque[tuple[int, float]] = collections.deque()
        self._episodes, self._returns = 0, 0.0

    def add(self, episodes: int, returns: float) -> None:
        """Count an iteration's episodes, and drop those that are no longer among the latest."""
        if not episodes:  # with long or endless episodes, memory must not grow with iterations
            return
        self._recent.append((episodes, returns))
        self._episodes += episodes
        self._returns += returns
        while self._episodes - self._recent[0][0] >= WINDOW:
            old_episodes, old_returns = self._recent.popleft()
            self._episodes -= old_episodes
            self._returns -= old_returns

    @property
    def return_mean(self) -> float | None:
        """Mean return of the latest episodes; None before the first one ended."""
        return self._returns / self._episodes if self._episodes else None

    @property
    def has_enough_episodes(self) -> bool:
        """Whether the mean covers as many episodes as it should."""
        return self._episodes >= WINDOW


class Tally:
    """Turns metrics into records, and tracks the latest episodes."""

    def __init__(self) -> None:
        self._recent = RecentEpisodes()

    def add(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """A record of one iteration's metrics."""
        episodes, returns, _ = TOTALS
        if episodes in metrics:
            self._recent.add(int(metrics[episodes]), float(metrics[returns]))
        return as_record(metrics)

    def recall(self, record: dict[str, Any]) -> None:
        """Count an earlier iteration from its record."""
        if record.get("episodes"):
            self._recent.add(record["episodes"], record["return_mean"] * record["episodes"])

    @property
    def return_mean(self) -> float | None:
        """Mean return of the latest episodes; None before the first one ended."""
        return self._recent.return_mean

    @property
    def has_enough_episodes(self) -> bool:
        """Whether the mean covers as many episodes as it should."""
        return self._recent.has_enough_episodes


def best_return(records: Sequence[dict[str, Any]]) -> float:
    """The highest mean return over the latest episodes of a run, once there are enough of them."""
    recent, episodes, best = RecentEpisodes(), 0, -float("inf")
    for record in records:
        if record.get("episodes"):
            recent.add(record["episodes"], record["return_mean"] * record["episodes"])
            episodes += record["episodes"]
        if episodes >= WINDOW and recent.return_mean is not None:
            best = max(best, recent.return_mean)
    return best


def as_record(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics as plain numbers, with the totals over finished episodes turned into their number and means."""
    record = {
        name: value.item() if np.ndim(value) == 0 else np.asarray(value).tolist() for name, value in metrics.items()
    }
    if TOTALS[0] in record:
        episodes, returns, lengths = (record.pop(name) for name in TOTALS)
        means = {"return_mean": returns, "length_mean": lengths}
        record |= {"episodes": episodes, **{name: x / episodes if episodes else None for name, x in means.items()}}
    return record
