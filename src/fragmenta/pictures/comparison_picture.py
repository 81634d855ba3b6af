"""The picture of a comparison: a panel per environment, a curve per group."""

from typing import TYPE_CHECKING

from fragmenta.drawing.colours import COLOURS, INK, MUTED
from fragmenta.pictures.comparison import Group
from fragmenta.pictures.intervals import CONFIDENCE
from fragmenta.pictures.style import dress, new_figure
from fragmenta.runs.episode_statistics import WINDOW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3
DASHES = ("-", "--", ":")
"""For when there are more groups than colours."""


def comparison_figure(groups: list[Group]) -> "Figure":
    """Return against steps: the interquartile mean over seeds with its interval, or the curve of a single run."""
    envs = list(dict.fromkeys(group.env for group in groups))
    labels = list(dict.fromkeys(group.label for group in groups))
    columns = min(len(envs), COLUMNS)
    rows = -(-len(envs) // columns)
    figure = new_figure(max(8.0, 5.0 * columns), 3.8 * rows + 1.0)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    lines = {}
    for panel, env in zip(panels, envs, strict=False):
        dress(panel, "environment steps", "return")
        algorithms = {group.runs[0].config["algorithm"] for group in groups if group.env == env}
        title = f"{algorithms.pop()} on {env}" if len(algorithms) == 1 else env
        panel.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
        panel.set_xlim(0, max(group.steps[-1] for group in groups if group.env == env))
        for group in groups:
            if group.env == env:
                place = labels.index(group.label)
                colour, dash = COLOURS[place % len(COLOURS)], DASHES[place // len(COLOURS) % len(DASHES)]
                (line,) = panel.plot(group.steps, group.curve.middle, dash, color=colour, linewidth=2)
                lines[group.label] = line
                if group.curve.low is not None:
                    panel.fill_between(
                        group.steps, group.curve.low, group.curve.high, color=colour, alpha=0.18, linewidth=0
                    )
    for panel in panels[len(envs) :]:
        panel.set_axis_off()
    how = f"mean over the latest {WINDOW} episodes; interquartile mean over seeds, {CONFIDENCE:.0%} bootstrap interval"
    legend = figure.legend(
        [lines[label] for label in labels],
        [_with_count(label, groups) for label in labels],
        loc="outside lower left", ncols=1 if max(map(len, labels)) > 50 else 2, frameon=False, fontsize=9,
        labelcolor=INK, title=how, title_fontsize=8, alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(MUTED)
    return figure


def _with_count(label: str, groups: list[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups if group.label == label})
    seeds = "1 run" if counts == [1] else f"{' or '.join(map(str, counts))} runs"
    return f"{label} ({seeds})"
