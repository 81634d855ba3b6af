"""Flowcharts as PNG files."""

import io

from fragmenta.drawing.colours import COLOURS, EDGE, INK, MARK, MUTED, SOFT
from fragmenta.drawing.flowchart import Curve, Drawing, Rectangle
from fragmenta.drawing.flowchart_svg import PADDING, SIZES
from fragmenta.pictures.style import new_figure

PIXELS_PER_INCH = 100


def png_file(drawing: Drawing) -> bytes:
    """The drawing as a PNG file, at twice the size in pixels of the SVG."""
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.path import Path

    width, height = drawing.width + 2 * PADDING, drawing.height + 2 * PADDING
    figure = new_figure(width / PIXELS_PER_INCH, height / PIXELS_PER_INCH)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(drawing.left - PADDING, drawing.left - PADDING + width), ylim=(height - PADDING, -PADDING))
    axes.set_axis_off()
    points_per_pixel = 72 / PIXELS_PER_INCH
    for shape in drawing.shapes:
        if isinstance(shape, Rectangle):
            edge, line = (MARK, 2.2) if shape.marked else (EDGE, 0.8)
            style = {"boxstyle": "round,pad=0,rounding_size=9", "facecolor": SOFT, "edgecolor": edge, "linewidth": line}
            axes.add_patch(FancyBboxPatch((shape.x, shape.y), shape.width, shape.height, **style))
        elif isinstance(shape, Curve):
            codes = [Path.MOVETO, *([Path.LINETO] if len(shape.points) == 2 else [Path.CURVE4] * 3)]
            style = {"arrowstyle": "-|>", "mutation_scale": 9, "color": COLOURS[0], "linewidth": 1.3}
            axes.add_patch(FancyArrowPatch(path=Path(shape.points, codes), shrinkA=0, shrinkB=0, **style))
        else:
            align = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
            weight = "bold" if shape.look == "name" else "normal"
            colour, size = MUTED if shape.look == "minor" else INK, SIZES[shape.look] * points_per_pixel
            axes.text(shape.x, shape.y, shape.text, ha=align, color=colour, fontsize=size, fontweight=weight)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=2 * PIXELS_PER_INCH)
    return content.getvalue()
