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
HEADROOM = 0.04
"""Space above the highest tick and below the lowest, as a share of the distance between them."""
SIDE = 1000
"""The SVG's internal coordinates run from 0 to this in both directions."""
Scale = Callable[[float], float]
"""Maps a number to its SVG coordinate."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a chart, with a band if its series has one; or, with `low` and `high`, points with intervals."""

    name: str
    look: str
    """A CSS class of the page's style sheet."""
    series: Series
    clock: Callable[[np.ndarray], np.ndarray]
    """From steps to seconds of training."""
    colour: str = ""
    """A CSS colour, instead of the one of the look."""
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def chart(title: str, lines: list[Line], last_step: float, look: str = "", from_zero: bool = False) -> str:
    """A figure with title, lines and ticks against steps, and the data with which the page's script shows numbers at
    the pointer, smooths, and draws against time."""
    lines = [line if line.low is not None else dataclasses.replace(line, series=thin(line.series)) for line in lines]
    bottom, top, y_ticks = _range(lines, from_zero)
    last_second = max(float(line.clock(np.asarray([last_step]))[0]) for line in lines)
    x_ticks = ticks(0, last_step, 5)

    def x(value: float) -> float:
        return round(SIDE * value / last_step, 1)

    def y(value: float) -> float:
        return round(SIDE * (top - value) / (top - bottom), 1)

    grid = "".join(f"M0 {y(tick):g}H{SIDE}" for tick in y_ticks)
    paths = [f'<path class="grid" d="{grid}"/>']
    for i, line in enumerate(lines):
        if line.low is not None:
            paths.append(_points(line, i, x, y))
        else:
            paths.append(_band(line, i, x, y) + _path(line, i, x, y))
    y_labels = "".join(f'<span style="top:{y(t) / SIDE:.2%}">{text}</span>' for t, text in _labels(y_ticks))
    x_labels = "".join(f'<span style="left:{x(t) / SIDE:.2%}">{text}</span>' for t, text in _labels(x_ticks))
    keys = "".join(f'<span class="key {line.look}"{_coloured(line)}>{escape(line.name)}</span>' for line in lines)
    return (
        f'<figure class="chart {look}"><figcaption>{escape(title)}'
        f"{f'<span class=keys>{keys}</span>' if len(lines) > 1 else ''}</figcaption>"
        f'<div class="plot"><div class="y">{y_labels}</div>'
        f'<div class="area"><svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)} against environment steps">{"".join(paths)}</svg></div>'
        f'<div class="x">{x_labels}</div><div class="axis">environment steps</div></div>'
        f'<script type="application/json">{_data(lines, (bottom, top), last_step, last_second)}</script></figure>'
    )


def thin(series: Series) -> Series:
    """Downsample to at most `POINTS` points, by means over neighbours."""
    if len(series.steps) <= POINTS:
        return series
    pieces = np.array_split(np.arange(len(series.steps)), POINTS)

    def means(values: np.ndarray) -> np.ndarray:
        return np.asarray([values[piece].mean() for piece in pieces])

    columns = (series.steps, series.values, series.low, series.high)
    return Series(*(means(column) for column in columns if column is not None))


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


def _range(lines: list[Line], from_zero: bool) -> tuple[float, float, list[float]]:
    """The lowest and the highest number of the y axis, and its ticks, which enclose all values."""
    bounds = [(line.series, line.series.low, line.series.high, line.low, line.high) for line in lines]
    values = np.concatenate([v for series, *rest in bounds for v in (series.values, *rest) if v is not None])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if from_zero:
        low = min(low, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        high, low = high + (abs(high) or 1.0) * 0.5, low - (0.0 if from_zero else (abs(low) or 1.0) * 0.5)
    places = ticks(low, high, 4)
    step = places[1] - places[0]
    places = [round(places[0] - step, 12)] * (places[0] > low) + places
    places += [round(places[-1] + step, 12)] * (places[-1] < high)
    room = (places[-1] - places[0]) * HEADROOM
    return places[0] - (0.0 if from_zero and places[0] == 0 else room), places[-1] + room, places


def _path(line: Line, number: int, x: Scale, y: Scale) -> str:
    parts, pen = [], "M"
    for step, value in zip(line.series.steps, line.series.values, strict=True):
        if not math.isfinite(value):
            pen = "M"  # a gap where the value is not finite
            continue
        parts.append(f"{pen}{x(step):g} {y(value):g}")
        pen = "L"
    if len(parts) == 1:
        parts.append("h0")  # with round caps, a dot
    return f'<path class="line {line.look}" data-line="{number}"{_coloured(line)} d="{"".join(parts)}"/>'


def _band(line: Line, number: int, x: Scale, y: Scale) -> str:
    steps, low, high = line.series.steps, line.series.low, line.series.high
    if low is None or high is None or not len(steps):
        return ""
    above = [f"{x(step):g} {y(value):g}" for step, value in zip(steps, high, strict=True)]
    below = [f"{x(step):g} {y(value):g}" for step, value in zip(steps, low, strict=True)]
    outline = "L".join([*above, *reversed(below)])
    return f'<path class="band" data-line="{number}"{_coloured(line)} d="M{outline}Z"/>'


def _points(line: Line, number: int, x: Scale, y: Scale) -> str:
    assert line.low is not None
    assert line.high is not None
    places = list(zip(line.series.steps, line.series.values, line.low, line.high, strict=True))
    bars = "".join(f"M{x(step):g} {y(low):g}V{y(high):g}" for step, _, low, high in places)
    # A zero-length line with round caps stays a round dot however the SVG is stretched.
    dots = "".join(f"M{x(step):g} {y(mean):g}h0" for step, mean, _, _ in places)
    names = f'{line.look}" data-line="{number}"'
    return f'<path class="bar {names} d="{bars}"/><path class="dot {names} d="{dots}"/>'


def _coloured(line: Line) -> str:
    return f' style="--line:{line.colour}"' if line.colour else ""


def _data(lines: list[Line], y: tuple[float, float], last_step: float, last_second: float) -> str:
    def numbers(values: np.ndarray, digits: int = 5) -> list[float | None]:
        return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]

    def content_of(line: Line) -> dict[str, Any]:
        steps = line.series.steps
        content = {
            "name": line.name,
            "steps": steps.round().astype(int).tolist(),
            "values": numbers(line.series.values),
        }
        content["seconds"] = numbers(line.clock(steps), 7)
        if line.low is not None and line.high is not None:
            content |= {"low": numbers(line.low), "high": numbers(line.high)}
        if line.series.low is not None and line.series.high is not None:
            content["band"] = [numbers(line.series.low), numbers(line.series.high)]
        return content

    def axis(last: float) -> dict[str, Any]:
        return {"last": last, "ticks": _labels(ticks(0, last, 5))}

    axes = {"steps": axis(last_step), **({"seconds": axis(last_second)} if last_second > 0 else {})}
    content = {"axes": axes, "bottom": y[0], "top": y[1], "lines": [content_of(line) for line in lines]}
    return json.dumps(content, separators=(",", ":")).replace("</", "<\\/")
