"""The learning curve of one run, `curve.png` in its directory."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fragmenta.drawing.colours import COLOURS, INK, MUTED
from fragmenta.pictures.run_files import RunFiles, read_run_files, recent_returns, returns, speed
from fragmenta.pictures.style import dress, new_figure, save
from fragmenta.runs.episode_statistics import WINDOW
from fragmenta.runs.history import resumes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curve(path: Path) -> None:
    """Draw `curve.png` into a run directory. Training must not fail because of it: an error is printed as one line."""
    try:
        save(curve_figure(read_run_files(path)), path / "curve.png")
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"fragmenta: curve.png was not drawn: {reason}", file=sys.stderr)


def curve_figure(run: RunFiles) -> "Figure":
    """Return against steps, with evaluations if there are any; below it the speed."""
    figure = new_figure(8, 5)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    dress(top, "", "return")
    dress(bottom, "environment steps", "steps/s")
    each, recent, rate = returns(run), recent_returns(run), speed(run)
    line_style = ":." if len(recent.steps) == 1 else "-"  # a line of one point would be invisible
    top.plot(each.steps, each.values, line_style, color=COLOURS[0], alpha=0.25, linewidth=0.8, label="per iteration")
    top.plot(recent.steps, recent.values, line_style, color=COLOURS[0], linewidth=2, label=f"latest {WINDOW} episodes")
    if recent.low is not None and recent.high is not None:
        band = {"color": COLOURS[0], "alpha": 0.18, "linewidth": 0, "label": "lowest to highest seed"}
        top.fill_between(recent.steps, recent.low, recent.high, **band)
    for number, steps in enumerate(resumes(run.path)):
        for axes in (top, bottom):
            axes.axvline(steps, color=MUTED, linewidth=0.7, linestyle="--", label="" if number else "resumed")
    if run.evaluations:
        steps = [e["steps"] for e in run.evaluations]
        means = [e["return_mean"] for e in run.evaluations]
        below = [max(0.0, e["return_mean"] - e.get("return_low", e["return_mean"])) for e in run.evaluations]
        above = [max(0.0, e.get("return_high", e["return_mean"]) - e["return_mean"]) for e in run.evaluations]
        style = {"fmt": "o", "color": COLOURS[1], "markersize": 4, "capsize": 2, "linewidth": 1}
        top.errorbar(steps, means, yerr=[below, above], label="evaluation", **style)
    if len(recent.steps):
        top.legend(loc="best", frameon=False, fontsize=9, labelcolor=INK)
    else:
        top.text(0.5, 0.5, "no episode ended", transform=top.transAxes, ha="center", color=MUTED)
    bottom.plot(rate.steps, rate.values, color=COLOURS[2], linewidth=1.5, drawstyle="steps-pre")
    bottom.set_ylim(bottom=0)
    bottom.set_xlim(0, run.records[-1]["steps"])
    cut = "" if run.summary else ", not finished"
    top.set_title(run.title, loc="left", fontsize=12, fontweight="bold", color=INK)
    top.set_title(f"{run.placement}, {run.seed_words}{cut}", loc="right", fontsize=9, color=MUTED)
    return figure
