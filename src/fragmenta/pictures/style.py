"""The style of pictures: colours, figures without pyplot, uncluttered axes."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fragmenta.drawing.colours import GRID, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """A standalone figure, without pyplot's global state or a window."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    return Figure(figsize=(width, height), dpi=150, layout=layout, facecolor="white")


def dress(axes: "Axes", x_label: str, y_label: str) -> None:
    """Two spines, a light grid, short numbers."""
    from matplotlib.ticker import FuncFormatter

    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.tick_params(colors=MUTED, labelsize=9, length=0)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(x_label, color=MUTED, fontsize=9)
    axes.set_ylabel(y_label, color=MUTED, fontsize=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def save(figure: "Figure", path: Path) -> None:
    """Write a picture atomically; the suffix of its name decides the format."""
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format=path.suffix[1:])
    os.replace(temporary, path)


def short(value: float) -> str:
    """`1.5M`, `200k`, `500`, `0.25`, `3e-05`."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"
