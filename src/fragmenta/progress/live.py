"""The live view of a run: progress, return, speed, where time goes, losses."""

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fragmenta.progress.watching import Progress

LABEL = 9
"""Width of the labels on the left, in columns."""
GAP = 2
"""Columns between two cells."""
HISTORY = 512
"""Maximum points of the return's history; when exceeded, every second one is dropped."""
SPARKS, PLAIN_SPARKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
EIGHTHS = " ▏▎▍▌▋▊▉█"
OTHERS = ("iteration", "steps", "seconds", "episodes", "return_mean", "length_mean", "steps_per_second")
OTHERS += ("steps_per_second_overall", "memory_mb", "device_memory_mb", "lag", "dropped")
"""Numbers of a record that are not losses."""


class Picture:
    """The latest progress of a run, and how to draw it at any width. Another thread draws it at its own rate."""

    def __init__(self) -> None:
        self._spinner, self._phase = Spinner("dots"), "compiling"
        self._since = time.monotonic()
        self._progress: Progress | None = None
        self._latest: dict[str, Any] = {}
        self._returns: list[float] = []
        self._skip, self._count = 1, 0

    def wait(self, phase: str) -> None:
        """Set the phase to show while there is no progress yet."""
        self._phase, self._since = phase, time.monotonic()

    def add(self, progress: Progress) -> None:
        """Store the latest progress; fast, because training waits for it."""
        self._latest.update(progress.record)
        self._progress = progress
        if progress.return_mean is None:
            return
        self._count += 1
        if self._count % self._skip == 0:
            self._returns.append(progress.return_mean)
            if len(self._returns) > HISTORY:
                self._returns = self._returns[::2]
                self._skip *= 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw one line while compiling, then about six."""
        width, progress = options.max_width, self._progress
        if progress is None:
            self._spinner.update(text=f" {self._phase}, {time.monotonic() - self._since:.0f} s")
            yield self._spinner
            return
        yield self._bar(progress)
        yield from _lines(self._rows(progress, width, options.ascii_only), width)

    def _bar(self, progress: Progress) -> Table:
        grid = Table.grid(padding=(0, 1), expand=True)
        share = progress.iteration / progress.iterations
        time_left = f"{clock(seconds_left(progress))} left" if share < 1 else f"in {clock(progress.record['seconds'])}"
        for width in (LABEL - 1, None, 5, max(10, len(time_left))):
            grid.add_column(width=width, ratio=None if width else 1, justify="left" if width == LABEL - 1 else "right")
        grid.add_row(
            Text("training", style="bold"),
            ProgressBar(total=progress.iterations, completed=progress.iteration),
            f"{share:.0%}",
            time_left,
        )
        return grid

    def _rows(self, progress: Progress, width: int, ascii_only: bool) -> Iterator[tuple[str, list[Text]]]:
        latest = self._latest
        return_text = number(progress.return_mean)
        best = f" best {max(self._returns):.1f}" if self._returns else ""
        line = sparkline(self._returns, max(8, width - LABEL - len(return_text) - len(best) - 2), ascii_only)
        yield "return", [Text.assemble((return_text, "bold green"), "  ", (line, "green"), (best, "dim"))]
        total = progress.steps * progress.iterations // progress.iteration
        speed = [
            Text.assemble((f"{progress.steps_per_second:,.0f}", "bold"), " steps/s"),
            Text(f"{progress.steps:,} of {total:,} steps"),
        ]
        if "lag" in latest:
            speed.append(Text(f"lag {latest['lag']}"))
        yield "speed", speed
        for label, prefix, style in (("busy", "busy/", "cyan"), ("channels", "fill/", "magenta")):
            shares = {name[len(prefix) :]: share for name, share in latest.items() if name.startswith(prefix)}
            if shares:
                size = 16 if width >= 120 else 8
                longest = max(map(len, shares))
                yield (
                    label,
                    [_share(name.ljust(longest), share, size, style, ascii_only) for name, share in shares.items()],
                )
        places = {"on host": latest.get("memory_mb"), "on devices": latest.get("device_memory_mb")}
        yield "memory", [Text(f"{size:,.0f} MB {where}") for where, size in places.items() if size is not None]
        losses = {name: value for name, value in latest.items() if is_loss(name, value)}
        losses = dict(sorted(losses.items(), key=lambda item: not item[0].endswith("_loss")))
        if losses:
            yield (
                "losses",
                [Text.assemble((f"{title(name)} ", "dim"), small(value)) for name, value in losses.items()],
            )


def is_loss(name: str, value: Any) -> bool:
    """Whether a number of a record is a metric of the algorithm."""
    return isinstance(value, float) and name not in OTHERS and "/" not in name


def title(name: str) -> str:
    """An abbreviated metric name."""
    return "explained" if name == "explained_variance" else name.removesuffix("_loss").replace("_", " ")


def small(value: float) -> str:
    """A number in a few characters."""
    return f"{value:.0e}" if 0 < abs(value) < 0.01 else f"{value:.3g}"


def sparkline(values: list[float], width: int, ascii_only: bool = False) -> str:
    """A curve in one line of text, the newest on the right; a column is the mean of its values."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [i * len(values) // columns for i in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    levels = PLAIN_SPARKS if ascii_only else SPARKS
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    return "".join(levels[round((mean - low) * scale)] for mean in means)


def number(value: float | None) -> str:
    """A return, or a dash before there is one."""
    return "-" if value is None else f"{value:.1f}"


def seconds_left(progress: Progress) -> float:
    """Estimated remaining time at the average speed so far."""
    return progress.record["seconds"] / progress.iteration * (progress.iterations - progress.iteration)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _share(name: str, share: float, size: int, style: str, ascii_only: bool) -> Text:
    share = min(max(share, 0.0), 1.0)
    if ascii_only:
        bar = "#" * round(share * size)
    else:
        whole, part = divmod(round(share * size * 8), 8)
        bar = "█" * whole + (EIGHTHS[part] if part else "")
    return Text.assemble(f"{name} ", (bar.ljust(size), f"{style} on grey23"), f" {share:>4.0%}")


def _lines(rows: Iterable[tuple[str, list[Text]]], width: int) -> Iterator[Text]:
    """Rows with their labels on the left; cells that do not fit are wrapped."""
    for label, cells in rows:
        line = Text(label.ljust(LABEL), style="", no_wrap=True, overflow="ellipsis")
        line.stylize("dim", 0, LABEL)
        used = LABEL
        for i, cell in enumerate(cells):
            if i and used + GAP + cell.cell_len > width:
                yield line
                line, used = Text(" " * LABEL, no_wrap=True, overflow="ellipsis"), LABEL
            elif i:
                line.append(" " * GAP)
                used += GAP
            line.append_text(cell)
            used += cell.cell_len
        yield line
