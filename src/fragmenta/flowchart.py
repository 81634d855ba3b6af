"""Read the Mermaid flowchart of a run's plan, and draw it as SVG."""

import dataclasses
import re
import textwrap
from html import escape

WIDTH, BOX, LINE, GAP = 360, 264, 17, 30
"""Width of the drawing and of a box, height of a line of text, and minimum space between boxes."""
LANE = 62
"""Extra width on either side for each box that an arrow passes."""
STYLE = (
    ".flow rect { fill: none; stroke: currentColor; } .flow text { fill: currentColor; font: 12.5px sans-serif; "
    "text-anchor: middle; } .flow .name { font-weight: 650; } .flow .minor { opacity: .65; } "
    ".flow .arrow { fill: none; stroke: #2a6fdb; stroke-width: 1.8; } .flow marker path { fill: #2a6fdb; }"
)
"""For a drawing that stands alone, not in a report, which has its own."""


@dataclasses.dataclass(frozen=True)
class Box:
    """A fragment: its name and replicas, then lines with stages, devices, and collectives among its replicas."""

    key: str
    title: str
    lines: tuple[str, ...]


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


def read_flowchart(text: str) -> tuple[list[Box], list[Arrow]]:
    """The boxes and arrows of a flowchart as `to_mermaid` writes it."""
    boxes = []
    for key, caption in re.findall(r'^\s*(\S+?)\["(.*)"\]\s*$', text, re.MULTILINE):
        title, *lines = caption.split("<br/>")
        boxes.append(Box(key, title, tuple(lines)))
    titles = {box.key: box.title.partition(" ")[0] for box in boxes}
    arrows = []
    for producer, caption, consumer in re.findall(r'^\s*(\S+) -- "(.*)" --> (\S+)\s*$', text, re.MULTILINE):
        transfer, _, amount = caption.partition("<br/>")
        operator, _, values = transfer.partition(": ")
        size, _, times = amount.partition(" per iteration")
        ends = titles.get(producer, producer), titles.get(consumer, consumer)
        arrows.append(Arrow(*ends, operator, values, size, times.strip(", ")))
    return boxes, arrows


def draw_flowchart(boxes: list[Box], arrows: list[Arrow]) -> str:
    """Boxes from top to bottom, with downward arrows on the left and upward ones on the right; without details."""
    names = [box.title.partition(" ")[0] for box in boxes]
    pairs: dict[tuple[int, int], list[str]] = {}
    for arrow in arrows:
        if arrow.producer in names and arrow.consumer in names:
            ends = names.index(arrow.producer), names.index(arrow.consumer)
            pairs.setdefault(ends, []).append(f"{arrow.operator} {arrow.size}")
    texts = [[line for part in box.lines for line in textwrap.wrap(part, 40) or [""]] for box in boxes]
    tops, bottoms, y = [], [], 1.0
    for i, text in enumerate(texts):
        tops.append(y)
        bottoms.append(y + (len(text) + 1) * LINE + 18)
        labels = max((len(lines) for ends, lines in pairs.items() if sorted(ends) == [i, i + 1]), default=0)
        y = bottoms[-1] + GAP + labels * LINE
    longest = max((abs(a - b) for a, b in pairs if abs(a - b) > 1), default=0)
    margin = (longest + 1) * LANE if longest else 0
    parts = [_box(box, text, top, bottom) for box, text, top, bottom in zip(boxes, texts, tops, bottoms, strict=True)]
    parts += [_arrow(a, b, lines, tops, bottoms) for (a, b), lines in pairs.items()]
    height = bottoms[-1] + 1 if bottoms else 0
    label = escape(f"Fragments {', '.join(names)} and what crosses between them")
    return (
        f'<svg class="flow" role="img" aria-label="{label}" width="{WIDTH + 2 * margin}" height="{height:g}" '
        f'viewBox="{-margin} 0 {WIDTH + 2 * margin} {height:g}"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" '
        f'refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{''.join(parts)}</svg>"
    )


def _box(box: Box, text: list[str], top: float, bottom: float) -> str:
    left, middle = (WIDTH - BOX) / 2, WIDTH / 2
    lines = [f'<rect x="{left:g}" y="{top:g}" width="{BOX}" height="{bottom - top:g}" rx="9"/>']
    lines.append(f'<text class="name" x="{middle:g}" y="{top + 22:g}">{escape(box.title)}</text>')
    for i, line in enumerate(text):
        style = "" if i == 0 else ' class="minor"'
        lines.append(f'<text{style} x="{middle:g}" y="{top + 22 + (i + 1) * LINE:g}">{escape(line)}</text>')
    return "".join(lines)


def _arrow(start: int, end: int, lines: list[str], tops: list[float], bottoms: list[float]) -> str:
    down = start < end
    y1, y2 = (bottoms[start], tops[end]) if down else (tops[start], bottoms[end])
    side = -1 if down else 1
    x = WIDTH / 2 + side * 18
    label_x, anchor = x + side * 9, "end" if down else "start"
    path = f"M{x:g} {y1:g}V{y2:g}"
    if abs(start - end) > 1:  # around the boxes in between
        edge = WIDTH / 2 + side * BOX / 2
        y1, y2 = ((tops[i] + bottoms[i]) / 2 for i in (start, end))
        out = edge + side * LANE * (abs(start - end) + 0.5)
        path = f"M{edge:g} {y1:g}C{out:g} {y1:g} {out:g} {y2:g} {edge:g} {y2:g}"
        label_x, anchor = edge + side * 6, "end" if down else "start"
    first = (y1 + y2) / 2 - (len(lines) - 1) * LINE / 2 + 4
    place = f'class="minor" style="text-anchor:{anchor}" x="{label_x:g}"'
    labels = [f'<text {place} y="{first + i * LINE:g}">{escape(line)}</text>' for i, line in enumerate(lines)]
    return f'<path class="arrow" marker-end="url(#tip)" d="{path}"/>{"".join(labels)}'


def diagram(text: str) -> str:
    """A flowchart as `to_mermaid` writes it, as an SVG drawing with colours of its own."""
    return draw_flowchart(*read_flowchart(text)).replace("<defs>", f"<defs><style>{STYLE}</style>", 1)
