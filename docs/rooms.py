"""The picture of the folders in walk.md, drawn from the imports: `python docs/rooms.py` draws it again."""

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from fragmenta.drawing.flowchart import Curve, Drawing, Rectangle, Text
from fragmenta.drawing.flowchart_svg import svg_file

SOURCE = Path(__file__).parents[1] / "src"
PICTURE = Path(__file__).parent / "images" / "rooms.svg"
COLUMN, ROW, BOX, HEIGHT = 156, 62, 138, 30
"""Distance of columns and of rows, width and height of a box."""
SMALL = {"fragmenta", "command", "errors", "version"}
"""Imported by nearly everything, or importing nearly everything: left out of the picture."""


def room_of(module: str) -> str:
    """The folder that a module is in: a folder of fragmenta, one of its loose modules, or another package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "fragmenta" and len(parts) > 1 else parts[0]


def imported(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fragmenta"):
            for name in node.names:
                is_module = (SOURCE / Path(*node.module.split("."), f"{name.name}.py")).exists()
                yield f"{node.module}.{name.name}" if is_module or node.module == "fragmenta" else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("fragmenta"))


def imports() -> dict[str, set[str]]:
    """For every folder, the folders that it imports."""
    edges: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        room = room_of(".".join(path.relative_to(SOURCE).with_suffix("").parts))
        others = {room_of(module) for module in imported(path)} - {room}
        edges.setdefault(room, set()).update(others)
    return {room: others - SMALL for room, others in edges.items() if room not in SMALL | {"__init__"}}


def reachable(edges: dict[str, set[str]], room: str) -> set[str]:
    """All folders that a folder imports, directly or through others."""
    seen: set[str] = set()
    waiting = set(edges.get(room, ()))
    while waiting:
        other = waiting.pop()
        seen.add(other)
        waiting |= edges.get(other, set()) - seen
    return seen


def arrows() -> dict[str, set[str]]:
    """For every folder, the folders that it imports, without those that it also imports through others."""
    edges = imports()
    for room, others in edges.items():
        assert room not in reachable(edges, room), f"{room} imports itself through {sorted(others)}"
    indirect = {room: set[str]().union(*(reachable(edges, other) for other in edges[room])) for room in edges}
    return {room: edges[room] - indirect[room] for room in sorted(edges)}


def rows(edges: dict[str, set[str]]) -> list[list[str]]:
    """The folders from top to bottom, each below all that import it."""
    level = dict.fromkeys(sorted({*edges, *set[str]().union(*edges.values())}), 0)
    for _ in level:
        for room, others in edges.items():
            for other in others:
                level[other] = max(level[other], level[room] + 1)
    return [[room for room in level if level[room] == row] for row in range(max(level.values()) + 1)]


def drawing() -> str:
    """The folders as an SVG file; an arrow that follows from others is left out."""
    edges = arrows()
    place: dict[str, tuple[float, float]] = {}
    for row, unordered in enumerate(rows(edges)):
        above = {room: [place[other][0] for other in place if room in edges.get(other, ())] for room in unordered}
        ordered = sorted(unordered, key=lambda room: mean(above[room] or [0]))
        for column, room in enumerate(ordered):
            place[room] = (column - (len(ordered) - 1) / 2) * COLUMN, 1 + row * ROW
    shapes: list[Rectangle | Text | Curve] = []
    for room, others in edges.items():
        for other in sorted(others):
            shapes.append(Curve(((place[room][0], place[room][1] + HEIGHT), place[other])))
    for room, (x, y) in place.items():
        shapes += [Rectangle(x - BOX / 2, y, BOX, HEIGHT, False), Text(x, y + 20, room, "plain")]
    right = max(x for x, _ in place.values()) + BOX / 2 + 1
    bottom = max(y for _, y in place.values()) + HEIGHT + 1
    label = "The folders of the source code, and which imports which"
    return svg_file(Drawing(-right, 2 * right, bottom, label, tuple(shapes)))


if __name__ == "__main__":
    PICTURE.write_text(drawing())
