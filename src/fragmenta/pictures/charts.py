"""Line charts as HTML and SVG that scale with the page: lines in the SVG, all text outside it."""

import dataclasses
import json
import math
from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np

from fragmenta.pictures.run_files import Series
from fragmenta.pictures.style import short

POINTS = 300
"""Maximum number of points of a line; more would not be visible, and the page would grow with the run."""
SIDE = 1000
"""The SVG's internal coordinates run from 0 to this in both directions."""
Scale = Callable[[float], float]
"""Maps a number to its SVG coordinate."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a chart or, with `low` and `high`, points with intervals."""

    name: str
    look: str
    """A CSS class of the page's style sheet."""
    series: Series
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def chart(title: str, lines: list[Line], last_step: float, look: str = "", from_zero: bool = False) -> str:
    """A figure with title, lines, ticks, and the data for the tooltip at the pointer."""
    lines = [line if line.low is not None else dataclasses.replace(line, series=thin(line.series)) for line in lines]
    bottom, top = _range(lines, from_zero)
    y_ticks, x_ticks = ticks(bottom, top, 4), ticks(0, last_step, 5)

    def x(value: float) -> float:
        return round(SIDE * value / last_step, 1)

    def y(value: float) -> float:
        return round(SIDE * (top - value) / (top - bottom), 1)

    grid = "".join(f"M0 {y(tick):g}H{SIDE}" for tick in y_ticks)
    paths = [f'<path class="grid" d="{grid}"/>']
    for line in lines:
        paths.append(_points(line, x, y) if line.low is not None else _path(line, x, y))
    y_labels = "".join(f'<span style="top:{y(t) / SIDE:.2%}">{text}</span>' for t, text in _labels(y_ticks))
    x_labels = "".join(f'<span style="left:{x(t) / SIDE:.2%}">{text}</span>' for t, text in _labels(x_ticks))
    keys = "".join(f'<span class="key {line.look}">{escape(line.name)}</span>' for line in lines)
    return (
        f'<figure class="chart {look}"><figcaption>{escape(title)}'
        f"{f'<span class=keys>{keys}</span>' if len(lines) > 1 else ''}</figcaption>"
        f'<div class="plot"><div class="y">{y_labels}</div>'
        f'<div class="area"><svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)} against environment steps">{"".join(paths)}</svg></div>'
        f'<div class="x">{x_labels}</div></div>'
        f'<script type="application/json">{_data(lines, last_step)}</script></figure>'
    )


def thin(series: Series) -> Series:
    """Downsample to at most `POINTS` points, by means over neighbours."""
    if len(series.steps) <= POINTS:
        return series
    pieces = np.array_split(np.arange(len(series.steps)), POINTS)
    return Series(
        np.asarray([series.steps[piece].mean() for piece in pieces]),
        np.asarray([series.values[piece].mean() for piece in pieces]),
    )


def ticks(low: float, high: float, about: int) -> list[float]:
    """About `about` round numbers between `low` and `high`."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _labels(places: list[float]) -> list[tuple[float, str]]:
    """Abbreviated numbers, unless two of them would look the same."""
    texts = [short(place) for place in places]
    if len(set(texts)) < len(texts):
        texts = [f"{place:.7g}" for place in places]
    return list(zip(places, texts, strict=True))


def _range(lines: list[Line], from_zero: bool) -> tuple[float, float]:
    values = np.concatenate([v for line in lines for v in (line.series.values, line.low, line.high) if v is not None])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if from_zero:
        low = min(low, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        high, low = high + (abs(high) or 1.0) * 0.5, low - (0.0 if from_zero else (abs(low) or 1.0) * 0.5)
    room = (high - low) * 0.05
    return low - (0.0 if from_zero and low == 0 else room), high + room


def _path(line: Line, x: Scale, y: Scale) -> str:
    parts, pen = [], "M"
    for step, value in zip(line.series.steps, line.series.values, strict=True):
        if not math.isfinite(value):
            pen = "M"  # a gap where the value is not finite
            continue
        parts.append(f"{pen}{x(step):g} {y(value):g}")
        pen = "L"
    if len(parts) == 1:
        parts.append("h0")  # with round caps, a dot
    return f'<path class="line {line.look}" d="{"".join(parts)}"/>'


def _points(line: Line, x: Scale, y: Scale) -> str:
    assert line.low is not None
    assert line.high is not None
    places = list(zip(line.series.steps, line.series.values, line.low, line.high, strict=True))
    bars = "".join(f"M{x(step):g} {y(low):g}V{y(high):g}" for step, _, low, high in places)
    # A zero-length line with round caps stays a round dot however the SVG is stretched.
    dots = "".join(f"M{x(step):g} {y(mean):g}h0" for step, mean, _, _ in places)
    return f'<path class="bar {line.look}" d="{bars}"/><path class="dot {line.look}" d="{dots}"/>'


def _data(lines: list[Line], last_step: float) -> str:
    def numbers(values: np.ndarray) -> list[float | None]:
        return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]

    def content_of(line: Line) -> dict[str, Any]:
        steps = line.series.steps.round().astype(int).tolist()
        return {"name": line.name, "steps": steps, "values": numbers(line.series.values)}

    content = {"last": last_step, "lines": [content_of(line) for line in lines]}
    return json.dumps(content, separators=(",", ":")).replace("</", "<\\/")
