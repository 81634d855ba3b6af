"""Read the Mermaid flowchart of a plan, and lay it out as rectangles, lines and texts."""

import dataclasses
import re
import textwrap
from typing import Literal

WIDTH, BOX, LINE, GAP = 360, 264, 17, 30
"""Minimum width of the drawing, width of a box, height of a line of text, and minimum space between boxes."""
LANE = 62
"""How much further out an arrow runs for each box that it passes."""
LETTER = 6.4
"""Width of a letter beside an arrow, generously: text is drawn by programs with different fonts."""


@dataclasses.dataclass(frozen=True)
class FlowBox:
    """A fragment: its name and replicas, then lines with stages, devices, and collectives among its replicas."""

    key: str
    title: str
    lines: tuple[str, ...]
    busiest: bool
    """Whether it was measured to be the fragment that the others wait for."""


@dataclasses.dataclass(frozen=True)
class Arrow:
    """The values that cross from one fragment to another through one operator."""

    producer: str
    consumer: str
    operator: str
    values: str
    size: str
    """Bytes per iteration."""
    times: str
    """How often per iteration, if more than once."""
    measured: str
    """What was measured: bytes, and how long they were waited for; empty if nothing was."""


@dataclasses.dataclass(frozen=True)
class Rectangle:
    """The outline of a box."""

    x: float
    y: float
    width: float
    height: float
    marked: bool


@dataclasses.dataclass(frozen=True)
class Text:
    """A line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    look: Literal["name", "plain", "minor"]
    anchor: Literal["start", "middle", "end"] = "middle"


@dataclasses.dataclass(frozen=True)
class Curve:
    """An arrow: a straight line through two points, or a cubic through four."""

    points: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Shapes in pixels, from `left` to `left + width` and from 0 to `height`, and what they show in words."""

    left: float
    width: float
    height: float
    label: str
    shapes: tuple[Rectangle | Text | Curve, ...]


def read_flowchart(text: str) -> tuple[list[FlowBox], list[Arrow]]:
    """The boxes and arrows of a flowchart as `to_mermaid` writes it."""
    marked = re.findall(r"^\s*style (\S+) ", text, re.MULTILINE)
    boxes = []
    for key, caption in re.findall(r'^\s*(\S+?)\["(.*)"\]\s*$', text, re.MULTILINE):
        title, *lines = caption.split("<br/>")
        boxes.append(FlowBox(key, title, tuple(lines), busiest=key in marked))
    titles = {box.key: box.title.partition(" ")[0] for box in boxes}
    arrows = []
    for producer, caption, consumer in re.findall(r'^\s*(\S+) -- "(.*)" --> (\S+)\s*$', text, re.MULTILINE):
        transfer, amount, *measured = caption.split("<br/>")
        operator, _, values = transfer.partition(": ")
        size, _, times = amount.partition(" per iteration")
        ends = titles.get(producer, producer), titles.get(consumer, consumer)
        arrows.append(Arrow(*ends, operator, values, size, times.strip(", "), "".join(measured)))
    return boxes, arrows


def lay_out(boxes: list[FlowBox], arrows: list[Arrow]) -> Drawing:
    """Boxes from top to bottom, with downward arrows on the left and upward ones on the right."""
    names = [box.title.partition(" ")[0] for box in boxes]
    pairs: dict[tuple[int, int], list[str]] = {}
    for arrow in arrows:
        if arrow.producer in names and arrow.consumer in names:
            ends = names.index(arrow.producer), names.index(arrow.consumer)
            lines = [f"{arrow.operator} {arrow.size}", *filter(None, arrow.measured.split(", "))]
            pairs.setdefault(ends, []).extend(lines)
    texts = [[line for part in box.lines for line in textwrap.wrap(part, 40) or [""]] for box in boxes]
    tops, bottoms, y = [], [], 1.0
    for i, text in enumerate(texts):
        tops.append(y)
        bottoms.append(y + (len(text) + 1) * LINE + 18)
        labels = max((len(lines) for ends, lines in pairs.items() if sorted(ends) == [i, i + 1]), default=0)
        y = bottoms[-1] + GAP + labels * LINE
    shapes: list[Rectangle | Text | Curve] = []
    for box, text, top, bottom in zip(boxes, texts, tops, bottoms, strict=True):
        shapes += _box(box, text, top, bottom)
    for (start, end), lines in pairs.items():
        shapes += _arrow(start, end, lines, tops, bottoms)
    reach = max((abs(_far_end(shape) - WIDTH / 2) for shape in shapes if isinstance(shape, Text)), default=0.0)
    half = max(WIDTH / 2, reach + 4)
    label = f"Fragments {', '.join(names)} and what crosses between them"
    return Drawing(WIDTH / 2 - half, 2 * half, bottoms[-1] + 1 if bottoms else 0, label, tuple(shapes))


def _box(box: FlowBox, text: list[str], top: float, bottom: float) -> list[Rectangle | Text | Curve]:
    middle = WIDTH / 2
    lines = [Text(middle, top + 22 + (i + 1) * LINE, line, "minor" if i else "plain") for i, line in enumerate(text)]
    outline = Rectangle((WIDTH - BOX) / 2, top, BOX, bottom - top, box.busiest)
    return [outline, Text(middle, top + 22, box.title, "name"), *lines]


def _arrow(
    start: int, end: int, lines: list[str], tops: list[float], bottoms: list[float]
) -> list[Rectangle | Text | Curve]:
    down = start < end
    y1, y2 = (bottoms[start], tops[end]) if down else (tops[start], bottoms[end])
    side = -1 if down else 1
    x = WIDTH / 2 + side * 18
    label_x = x + side * 9
    curve = Curve(((x, y1), (x, y2)))
    if abs(start - end) > 1:  # around the boxes in between
        edge, out = WIDTH / 2 + side * BOX / 2, side * LANE * (abs(start - end) + 0.5)
        y1, y2 = ((tops[i] + bottoms[i]) / 2 for i in (start, end))
        curve = Curve(((edge, y1), (edge + out, y1), (edge + out, y2), (edge, y2)))
        label_x = edge + 0.75 * out + side * 8  # beyond the outermost point of the cubic
    first = (y1 + y2) / 2 - (len(lines) - 1) * LINE / 2 + 4
    anchor = "end" if down else "start"
    return [curve, *(Text(label_x, first + i * LINE, line, "minor", anchor) for i, line in enumerate(lines))]


def _far_end(text: Text) -> float:
    """Where a text ends that starts beside an arrow; for one in a box, its middle."""
    direction = {"start": 1, "middle": 0, "end": -1}[text.anchor]
    return text.x + direction * LETTER * len(text.text)
