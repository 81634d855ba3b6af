"""Small pieces of HTML and SVG with which objects show themselves in a notebook, without style sheets or scripts."""

import math
from collections.abc import Iterable, Sequence
from html import escape

WIDTH, HEIGHT = 560, 180
"""Size of a curve, in pixels."""
POINTS = 300
"""Maximum number of points of a curve."""


def listing(text: str) -> str:
    """Text with its columns kept."""
    return f'<pre style="line-height:1.35">{escape(text)}</pre>'


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values."""
    cells = "".join(
        f'<tr><td style="text-align:left;opacity:.65">{escape(name)}</td>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{cells}</table>"


def curve(points: Sequence[tuple[float, float]], end: float, x_label: str, y_label: str) -> str:
    """A line through points (x, y), with x from 0 to `end`, as SVG; empty before there are two."""
    points = [(x, y) for x, y in points if math.isfinite(y)]
    points = points[:: max(1, len(points) // POINTS)] + points[-1:]
    if len(points) < 2 or end <= 0:
        return ""
    low, high = min(y for _, y in points), max(y for _, y in points)
    span = high - low or 1.0
    places = " ".join(f"{WIDTH * x / end:.1f},{HEIGHT * (high - y) / span:.1f}" for x, y in points)
    text = 'font-size="11" fill="currentColor" opacity=".65" font-family="sans-serif"'
    return (
        f'<svg viewBox="-64 -14 {WIDTH + 78} {HEIGHT + 40}" width="{WIDTH + 78}" role="img" '
        f'aria-label="{escape(y_label)} against {escape(x_label)}" style="max-width:100%">'
        f'<path d="M0 0V{HEIGHT}H{WIDTH}" fill="none" stroke="currentColor" opacity=".3"/>'
        f'<polyline points="{places}" fill="none" stroke="#2a6fdb" stroke-width="2"/>'
        f'<text x="-6" y="8" text-anchor="end" {text}>{high:.4g}</text>'
        f'<text x="-6" y="{HEIGHT}" text-anchor="end" {text}>{low:.4g}</text>'
        f'<text x="-6" y="{HEIGHT / 2:g}" text-anchor="end" {text}>{escape(y_label)}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 18}" text-anchor="end" {text}>{end:,.0f} {escape(x_label)}</text></svg>'
    )
