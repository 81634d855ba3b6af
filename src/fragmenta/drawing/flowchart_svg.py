"""Flowcharts as SVG, inside a page or as a file of its own."""

import math
from html import escape

from fragmenta.drawing.colours import COLOURS, EDGE, INK, MARK, MUTED, SOFT
from fragmenta.drawing.flowchart import Curve, Drawing, Rectangle, Text, lay_out, read_flowchart

SIZES = {"name": 14.0, "plain": 12.5, "minor": 11.5}
"""Font sizes in pixels, by the look of a text."""
PADDING = 12
"""Space around the drawing in a file of its own."""
TIP = 8
"""Length of an arrow's tip."""
NAMESPACE = "http://www.w3.org/2000/svg"
STYLE = f"""\
.flow {{ font-family: system-ui, "DejaVu Sans", sans-serif; }}
.flow rect {{ fill: {SOFT}; stroke: {EDGE}; }}
.flow .marked {{ stroke: {MARK}; stroke-width: 3; }}
.flow text {{ fill: {INK}; font-size: {SIZES["plain"]}px; text-anchor: middle; }}
.flow .name {{ font-weight: 650; font-size: {SIZES["name"]}px; }}
.flow .minor {{ fill: {MUTED}; font-size: {SIZES["minor"]}px; }}
.flow .arrow {{ fill: none; stroke: {COLOURS[0]}; stroke-width: 1.8; }}
.flow .head {{ fill: {COLOURS[0]}; }}
"""
"""The report has its own style, which follows the reader's choice of light or dark."""


def to_svg(drawing: Drawing) -> str:
    """The drawing as an SVG element of a page, whose style sheet gives it colours and fonts."""
    return _svg(drawing, "", 0)


def diagram(text: str) -> str:
    """A flowchart as `to_mermaid` writes it, as an SVG drawing with colours of its own."""
    return _svg(lay_out(*read_flowchart(text)), f"<style>{STYLE}</style>", PADDING)


def svg_file(drawing: Drawing) -> str:
    """The drawing as an SVG file."""
    # Everything that is visible: viewers other than browsers ignore a background in the style.
    paper = '<path fill="white" d="M-9999-9999h19998v19998h-19998z"/>'
    return (
        _svg(drawing, f"<style>{STYLE}</style>{paper}", PADDING).replace("<svg", f'<svg xmlns="{NAMESPACE}"', 1) + "\n"
    )


def _svg(drawing: Drawing, style: str, padding: int) -> str:
    width, height = drawing.width + 2 * padding, drawing.height + 2 * padding
    return (
        f'<svg class="flow" role="img" aria-label="{escape(drawing.label)}" '
        f'width="{width:g}" height="{height:g}" viewBox="{drawing.left - padding:g} {-padding} {width:g} {height:g}">'
        f"{style}{''.join(map(_element, drawing.shapes))}</svg>"
    )


def _element(shape: Rectangle | Text | Curve) -> str:
    if isinstance(shape, Rectangle):
        look = ' class="marked"' if shape.marked else ""
        return f'<rect{look} x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}" rx="9"/>'
    if isinstance(shape, Text):
        look = "" if shape.look == "plain" else f' class="{shape.look}"'
        anchor = "" if shape.anchor == "middle" else f' style="text-anchor:{shape.anchor}"'
        return f'<text{look}{anchor} x="{shape.x:g}" y="{shape.y:g}">{escape(shape.text)}</text>'
    (x, y), *others = shape.points
    path = ("C" if len(others) == 3 else "L") + " ".join(f"{px:g} {py:g}" for px, py in others)
    (from_x, from_y), (end_x, end_y) = shape.points[-2:]
    length = math.dist(shape.points[-2], shape.points[-1])
    dx, dy = (end_x - from_x) / length, (end_y - from_y) / length
    back_x, back_y = end_x - TIP * dx, end_y - TIP * dy
    corners = [
        (end_x, end_y),
        (back_x - TIP / 2 * dy, back_y + TIP / 2 * dx),
        (back_x + TIP / 2 * dy, back_y - TIP / 2 * dx),
    ]
    # Not a marker: its id would have to be unique in a page with several drawings.
    tip = "L".join(f"{px:g} {py:g}" for px, py in corners)
    return f'<path class="arrow" d="M{x:g} {y:g}{path}"/><path class="head" d="M{tip}z"/>'
