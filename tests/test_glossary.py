"""One word for one thing: the words that the glossary replaces appear nowhere, and the pictures in docs are current."""

import ast
import re
from pathlib import Path

import rooms

ROOT = Path(__file__).parents[1]
PHRASES = ("number that is none", "numbers that are none", "make sure of each other", "what else there was to say")


def replaced_words() -> set[str]:
    """The last column of the glossary."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Glossary")[2]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    return {word for row in rows for word in re.findall(r"`(\w+)`", row[3])}


def public_names(path: Path) -> set[str]:
    """The names of all functions, classes and attributes that a module defines, but for private ones."""
    tree = ast.parse(path.read_text())
    defined = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    fields = {n.target.id for n in ast.walk(tree) if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    return {name for name in defined | fields if not name.startswith("_")}


def test_names_follow_the_glossary() -> None:
    words = {word.lower() for word in replaced_words()}
    assert len(words) >= 5
    for path in (ROOT / "src").rglob("*.py"):
        for name in public_names(path):
            parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+", name)} | {name.lower()}
            assert not parts & words, f"{path.relative_to(ROOT)}: {name} is called otherwise in CONTRIBUTING.md"


def test_pages_and_messages_follow_the_glossary() -> None:
    words = re.compile(rf"\b({'|'.join([*replaced_words(), *PHRASES])})s?\b")
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for path in pages:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert not (match := words.search(line)), f"{path.relative_to(ROOT)}:{number} says '{match[0]}'"


def test_the_picture_of_the_rooms_is_current() -> None:
    """Drawing it also fails if folders import each other."""
    assert rooms.PICTURE.read_text() == rooms.drawing(), "run `make docs`"
