"""The chart of throughput and efficiency against the number of devices."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fragmenta.drawing.colours import COLOURS, INK, MUTED
from fragmenta.pictures.style import dress, new_figure, save
from fragmenta.planner.scaling import ScalingCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_scaling(path: Path, title: str, curves: Sequence[ScalingCurve], note: str = "simulated") -> None:
    """Write the chart; the suffix of the path decides the format."""
    save(scaling_figure(title, curves, note), path)


def scaling_figure(title: str, curves: Sequence[ScalingCurve], note: str = "simulated") -> "Figure":
    """Steps per second on the left and efficiency on the right, with a line per distribution policy."""
    from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

    figure = new_figure(10.0, 4.2)
    speed, efficiency = figure.subplots(1, 2)
    counts = [point.devices for point in curves[0].points]
    for axes, label in ((speed, "environment steps per second"), (efficiency, "efficiency")):
        axes.set_xscale("log", base=2)
        dress(axes, "devices", label)
        axes.xaxis.set_major_locator(FixedLocator(counts[:: max(1, -(-len(counts) // 8))]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(axes.get_xticks(), [f"{count:,.0f}" for count in axes.get_xticks()])
    speed.set_yscale("log")
    speed.yaxis.set_minor_locator(NullLocator())
    for curve, colour in zip(curves, COLOURS * len(curves), strict=False):
        devices = [point.devices for point in curve.points]
        speed.plot(devices, [p.steps_per_second for p in curve.points], color=colour, linewidth=2, label=curve.policy)
        shares = [curve.efficiency(point) for point in curve.points]
        efficiency.plot(devices, shares, color=colour, linewidth=2)
    first = curves[0].points[0]
    ideal = [first.steps_per_second * count / first.devices for count in counts]
    speed.plot(counts, ideal, color=MUTED, linewidth=1, linestyle=":", label="ideal")
    efficiency.set_ylim(bottom=0)
    efficiency.yaxis.set_major_formatter(PercentFormatter(1.0))
    speed.legend(loc="best", frameon=False, fontsize=8, labelcolor=INK)
    speed.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    efficiency.set_title(note, loc="right", fontsize=9, color=MUTED)
    return figure
