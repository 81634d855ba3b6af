"""The picture of a sweep: curves of the best trials, and the return against each hyper-parameter."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fragmenta.drawing.colours import COLOURS, GRID, INK, MUTED
from fragmenta.pictures.style import dress, new_figure, save, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 5
"""How many of the best trials are drawn in colour."""
COLUMNS = 3


class DrawnTrial(Protocol):
    """What the picture shows of a trial."""

    @property
    def number(self) -> int:
        """The trial's number."""
        ...

    @property
    def values(self) -> dict[str, Any]:
        """Its hyper-parameters."""
        ...

    @property
    def return_mean(self) -> float | None:
        """Its return at the end."""
        ...

    @property
    def curve(self) -> Sequence[tuple[int, float]]:
        """Environment steps and returns."""
        ...


def draw_sweep(path: Path, title: str, trials: Sequence[DrawnTrial]) -> None:
    """Draw a sweep, the best trial first. The sweep must not fail because of it: an error is printed as one line."""
    try:
        save(sweep_figure(title, trials), path)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"fragmenta: {path.name} was not drawn: {reason}", file=sys.stderr)


def sweep_figure(title: str, trials: Sequence[DrawnTrial]) -> "Figure":
    """Curves of all trials, the best ones in colour; below them a panel per hyper-parameter."""
    names = list(trials[0].values)
    columns = min(len(names), COLUMNS)
    rows = -(-len(names) // columns)
    figure = new_figure(max(8.0, 4.0 * columns), 4.0 + 3.0 * rows)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=(4, *([3] * rows)))
    top = figure.add_subplot(grid[0, :])
    dress(top, "environment steps", "return")
    top.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
    top.set_title(f"{len(trials)} trials", loc="right", fontsize=9, color=MUTED)
    for place, trial in reversed(list(enumerate(trials))):
        if trial.curve:
            steps, values = zip(*trial.curve, strict=True)
            if place < SHOWN:
                label = f"{trial.number}: " + ", ".join(f"{name} {_text(v)}" for name, v in trial.values.items())
                top.plot(steps, values, color=COLOURS[place], linewidth=2, label=label)
            else:
                top.plot(steps, values, color=GRID, linewidth=1)
    if any(trial.curve for trial in trials[:SHOWN]):
        handles, labels = top.get_legend_handles_labels()
        top.legend(handles[::-1], labels[::-1], loc="best", frameon=False, fontsize=8, labelcolor=INK)
    for i, name in enumerate(names):
        panel = figure.add_subplot(grid[1 + i // columns, i % columns])
        dress(panel, name, "return" if i % columns == 0 else "")
        _scatter(panel, name, [trial for trial in trials if trial.return_mean is not None])
    return figure


def _scatter(panel: "Axes", name: str, trials: Sequence[DrawnTrial]) -> None:
    values = [trial.values[name] for trial in trials]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    places: list[float] = values if numeric else []
    if not numeric:
        labels = sorted(set(map(_text, values)))
        places = [labels.index(_text(value)) for value in values]
        panel.set_xticks(range(len(labels)), labels)
    elif values and min(values) > 0 and max(values) / min(values) >= 10:
        _logarithmic(panel)
    colours = [COLOURS[i] if i < SHOWN else MUTED for i in range(len(trials))]
    panel.scatter(places, [trial.return_mean or 0.0 for trial in trials], c=colours, s=14, alpha=0.8)


def _logarithmic(panel: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def _text(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.3g}"
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
