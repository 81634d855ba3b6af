"""The progress of a run in a notebook: a curve of the return that is drawn again as the run goes on."""

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.drawing.html_pieces import curve, listing
from fragmenta.engines import ProcessLocation
from fragmenta.graph import Plan
from fragmenta.progress.live import clock, number, seconds_left
from fragmenta.progress.terminal import summary_text
from fragmenta.progress.watching import Progress

EVERY = 0.5
"""Seconds between two drawings."""
HISTORY = 600
"""Maximum number of points kept; when exceeded, every second one is dropped."""


class NotebookView:
    """One output that changes: what is being done, then the curve and a line of numbers, then the summary."""

    def __init__(self) -> None:
        display: Any = importlib.import_module("IPython.display")
        self._html = display.HTML
        self._handle = display.display(self._html(""), display_id=True)
        self._points: list[tuple[float, float]] = []
        self._every, self._count = 1, 0
        self._drawn, self._end, self._line = 0.0, 0.0, ""

    def planned(self, plan: Plan, algorithm: Algorithm, steps: int, environments: str) -> None:
        """Show what is being compiled."""
        self._end = float(algorithm.total_steps)
        self._line = f"distribution policy {plan.policy}; environments: {environments}"
        self._draw("compiling ...")

    def placed(self, workers: Sequence[ProcessLocation]) -> None:
        """Show how many processes run."""
        self._draw(f"{len(workers)} processes have started")

    def compiled(self, seconds: float) -> None:
        """Show how long compiling took."""
        self._draw(f"compiled in {seconds:.1f} s")

    def progressed(self, progress: Progress) -> None:
        """Add a point, and draw again if the last drawing is old enough."""
        self._count += 1
        if progress.return_mean is not None and self._count % self._every == 0:
            self._points.append((progress.steps, progress.return_mean))
            if len(self._points) > HISTORY:
                self._points, self._every = self._points[::2], 2 * self._every
        now = time.monotonic()
        if now - self._drawn < EVERY and progress.iteration < progress.iterations:
            return
        self._drawn = now
        self._draw(
            f"{progress.steps:,} steps, {progress.iteration / progress.iterations:.0%}; "
            f"return {number(progress.return_mean)}; {progress.steps_per_second:,.0f} steps/s; "
            f"{clock(seconds_left(progress))} left"
        )

    def remarked(self, text: str) -> None:
        """Add the line to what stands below the curve."""
        self._line += f"\n{text}"

    def close(self) -> None:
        """Do nothing: the last drawing stays."""

    def finished(self, summary: dict[str, Any], run_dir: Path | None) -> None:
        """Draw the whole curve with the summary."""
        self._draw(summary_text(summary, run_dir))

    def _draw(self, text: str) -> None:
        drawing = curve(self._points, self._end, "environment steps", "return")
        self._handle.update(self._html(drawing + listing(f"{self._line}\n{text}")))
