"""How a sweep is shown: lines while it trains, one line and the best trials afterwards."""

import time
from collections.abc import Sequence
from typing import Any, TextIO

from fragmenta.search.trials import Trial

SHOWN = 10
"""Trials in the table on the screen and in a notebook; the files have all."""
EVERY = 2.0
"""Seconds between two lines of progress."""


class SweepLines:
    """The progress of a sweep as plain lines."""

    def __init__(self, output: TextIO) -> None:
        self._output, self._last = output, time.monotonic()

    def grouped(self, programs: int, trials: int, processes: int) -> None:
        """Print how the trials are trained."""
        count = {0: "as separate runs", 1: "as one program"}.get(programs, f"as {programs} programs")
        where = f", in {processes} processes" if processes > 1 else ""
        self._print(f"training {trials} trials {count}{where} ...")

    def progressed(self, steps: int, total: int, best: float | None) -> None:
        """Print a line every few seconds."""
        now = time.monotonic()
        if now - self._last >= EVERY:
            self._last = now
            text = "-" if best is None else f"{best:,.1f}"
            self._print(f"step {min(steps, total):>12,} of {total:,}  best return {text:>8}")

    def finished(self, trials: Sequence[Trial]) -> None:
        """Print how many trials are done."""
        self._print(f"finished {len(trials)} trial{'s' if len(trials) != 1 else ''}")

    def _print(self, text: str) -> None:
        print(text, file=self._output, flush=True)


def trial_text(trial: Trial) -> str:
    """A trial's return and values on one line."""
    ending = "diverged" if trial.diverged else "no return" if trial.return_mean is None else f"{trial.return_mean:,.1f}"
    return f"{ending} with {', '.join(f'{name} {value_text(value)}' for name, value in trial.values.items())}"


def value_text(value: Any) -> str:
    """A hyper-parameter with a few digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
