"""The user's callbacks: called while a run trains, they see its progress, add metrics and may end it."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fragmenta.errors import ConfigError, unknown
from fragmenta.progress.watching import Progress
from fragmenta.training.stopping import Stop

METHODS = ("on_iteration", "on_evaluation", "on_checkpoint")


class Added:
    """The metrics that callbacks add: those for the next record, and the names of all so far."""

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}
        self._names: set[str] = set()

    def add(self, name: str, value: float, record: Mapping[str, Any]) -> None:
        """Keep a metric for the next record; one that the latest record has must be of a callback."""
        if name in record and name not in self._names:
            raise ConfigError(f"a callback adds '{name}', which the record has already: choose another name")
        self._names.add(name)
        self._waiting[name] = value

    def take(self) -> dict[str, float]:
        """The metrics for this record."""
        taken, self._waiting = self._waiting, {}
        return taken


class Moment:
    """What a callback gets: the progress so far, the parameters on demand, and ways to add metrics and to stop."""

    def __init__(
        self, progress: Progress, params: Callable[[], Any], metrics: "Added", stop: Stop, **event: Any
    ) -> None:
        self.progress = progress
        self.evaluation: dict[str, Any] | None = event.get("evaluation")
        """In `on_evaluation`: its record, as in evaluations.jsonl."""
        self.checkpoint: Path | None = event.get("checkpoint")
        """In `on_checkpoint`: the folder that was written."""
        self._params, self._metrics, self._stop = params, metrics, stop

    @property
    def params(self) -> Any:
        """The parameters after the latest iteration, fetched when they are asked for."""
        return self._params()

    def add(self, **metrics: float) -> None:
        """Add numbers to the record of this iteration; from `on_evaluation` and `on_checkpoint`, to the next record."""
        for name, value in metrics.items():
            self._metrics.add(name, float(value), self.progress.record)

    def stop(self, reason: str) -> None:
        """End the run after this iteration, as if it were complete; the summary gives the reason."""
        self._stop.reason = self._stop.reason or reason


class Callbacks:
    """The callbacks of a run, and its target return."""

    def __init__(
        self, callbacks: Sequence[Any] = (), stop_at_return: float | None = None, events: Sequence[str] = METHODS
    ) -> None:
        """`events` are the methods for which there will be something to call them."""
        if not isinstance(callbacks, Sequence):
            raise ConfigError(f"callbacks is {callbacks!r:.60}: give a list, as in callbacks=[Watch()]")
        for callback in callbacks:
            _check(callback, events)
        if stop_at_return is not None and not _is_finite(stop_at_return):
            raise ConfigError(f"stop_at_return is {stop_at_return}: it must be a finite number")
        self._callbacks, self._target = tuple(callbacks), stop_at_return

    @property
    def each_iteration(self) -> bool:
        """Whether something looks at every iteration, which then is computed on its own."""
        return self._target is not None or any(hasattr(callback, "on_iteration") for callback in self._callbacks)

    def call(self, name: str, moment: Moment) -> None:
        """Call the callbacks that have this method; one that returns False ends the run."""
        for callback in self._callbacks:
            method = getattr(callback, name, None)
            if method is not None and method(moment) is False:
                moment.stop(f"{type(callback).__name__}.{name} returned False")

    def check_return(self, moment: Moment, episodes_suffice: bool) -> None:
        """End the run if the mean return of the latest episodes has reached the target."""
        mean = moment.progress.return_mean
        if self._target is not None and mean is not None and episodes_suffice and mean >= self._target:
            moment.stop(f"the mean return of the latest episodes is {mean:.1f}, at least {self._target:g}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _check(callback: Any, events: Sequence[str]) -> None:
    names = [name for name in dir(callback) if name.startswith("on_")]
    for name in names:
        if name not in METHODS:
            raise unknown(f"method of callback {type(callback).__name__}", name, METHODS)
    if isinstance(callback, (type, Mapping)) or not names:
        what = f"callback {callback!r:.60} has no method that is called"
        raise ConfigError(f"{what}: give an object with one of {', '.join(METHODS)}")
    if not set(names) & set(events):
        needs = "a run_dir and eval_every" if "on_evaluation" in names else "a run_dir"
        raise ConfigError(f"{names[0]} of callback {type(callback).__name__} is never called: it needs {needs}")
