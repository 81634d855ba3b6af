"""The picture of the folders in walk.md, drawn from the imports: `python docs/rooms.py` writes it anew."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PAGE = Path(__file__).with_name("walk.md")
BEGIN, END = "<!-- rooms: drawn by docs/rooms.py -->", "<!-- end of rooms -->"
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


def diagram() -> str:
    """The folders as a Mermaid flowchart; an arrow that follows from others is left out."""
    edges = imports()
    lines = ["flowchart TD"]
    for room in sorted(edges):
        others = edges[room]
        assert room not in reachable(edges, room), f"{room} imports itself through {sorted(others)}"
        indirect = set[str]().union(*(reachable(edges, other) for other in others))
        lines += [f"  {room} --> {other}" for other in sorted(others - indirect)]
    return "\n".join(lines)


def page() -> str:
    """The page with the picture of now."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```mermaid\n{diagram()}\n```\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
