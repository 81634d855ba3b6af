"""One word for one thing, as the glossary in CONTRIBUTING.md says; and the picture of the folders is current."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import rooms

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "mkdocs.yml", "pyproject.toml")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.py")),
    *sorted((ROOT / "benchmarks").glob("*.py")),
]
PRONOUNS = {"found", "said", "shown", "own", "theirs", "ours", "told", "seen", "beside", "anew"}
"""Also with an underscore before them."""
SAME_IN_EACH = {"EnvState", "Line", "PlacementOptions", "Sample", "State"}
"""Classes that several modules define for themselves: the state of their environment or algorithm, a sample for their
loss, their flags; a line of a chart and of a flat program."""


def not_column(glossary: str) -> tuple[set[str], set[str]]:
    """The names and the phrases in the last column of a glossary."""
    rows = [line.split("|") for line in glossary.splitlines() if line.startswith("| ")]
    column = " ".join(row[3] for row in rows)
    return set(re.findall(r"`([^`]+)`", column)), set(re.findall(r'"([^"]+)"', column))


def before_and_in_the_glossary() -> tuple[str, str]:
    before, _, glossary = (ROOT / "CONTRIBUTING.md").read_text().partition("## Glossary")
    return before, glossary


NAMES, PHRASES = not_column(before_and_in_the_glossary()[1])


def names_in(tree: ast.AST) -> Iterator[str]:
    """All names that a module defines: functions, classes, parameters, attributes and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def called_otherwise(name: str) -> set[str]:
    """The names in the last column of the glossary that a name is or, if they are in lower case, contains."""
    words = f"_{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower()}_"
    return {banned for banned in NAMES if name.strip("_") == banned or (banned.islower() and f"_{banned}_" in words)}


def banned_phrases(text: str) -> list[str]:
    """The phrases in the last column of the glossary that occur in a text, also across lines."""
    plain = " ".join(re.sub(r'[#"\n]+', " ", text).split()).lower()
    return [phrase for phrase in PHRASES if re.search(rf"\b{re.escape(phrase)}s?\b", plain)]


def texts(tree: ast.AST) -> Iterator[str]:
    """All strings of a module, f-strings joined, with {} for each value."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def vague_policies(text: str) -> list[str]:
    """Where a text names a distribution policy without saying that it is one; `--policy` is a flag."""
    return re.findall(
        r"(?<!distribution )(?<!--)\bpolicy (?:'|\{\}|fused\b|single_learner|multi_learner|central)", text
    )


def test_the_checks_can_fail() -> None:
    assert {"roamer", "step_back", "lasts", "film", "Recording", "Spread"} <= NAMES
    assert {"make sure of each other", "what else there was to say"} <= PHRASES
    for name in ("roamer", "_roamer", "RoamerThread", "lasts", "step_back", "Film", "film_writer", "Spread", "run_job"):
        assert called_otherwise(name), name
    for name in ("SimpleSpread", "spread", "last_segment", "recording_sinks", "JobOptions", "job", "filmed"):
        assert not called_otherwise(name), name
    assert banned_phrases('"""Both sides make sure\n    of each other."""')
    assert banned_phrases("# Roamers never wait.")
    assert vague_policies("unknown policy 'x'")
    assert vague_policies("policy {}: 4 KB")
    assert not vague_policies("--policy fused")
    assert not vague_policies("distribution policy 'fused' and a policy network")
    sample = ast.parse("def f(a, *b, c=1):\n    self.d = e = 1\n    for g in ():\n        h: int = 2")
    assert set(names_in(sample)) == set("fabcdegh")


def test_code_follows_the_glossary() -> None:
    for path in SOURCES:
        text, where = path.read_text(), path.relative_to(ROOT)
        tree = ast.parse(text)
        for name in {*names_in(tree), path.stem}:
            assert not called_otherwise(name), f"{where}: {name} is called otherwise in CONTRIBUTING.md"
            assert name.strip("_") not in PRONOUNS, f"{where}: {name} is not a noun"
        assert not banned_phrases(text), where
        assert not [vague for string in texts(tree) for vague in vague_policies(string)], where


def test_pages_follow_the_glossary() -> None:
    templates = sorted((ROOT / "src").rglob("*.html"))
    pages = {str(path.relative_to(ROOT)): path.read_text() for path in (*PAGES, *templates)}
    for where, text in (pages | {"CONTRIBUTING.md": before_and_in_the_glossary()[0]}).items():
        assert not banned_phrases(text), where
        assert not vague_policies(text), where
        assert not re.search(rf"`({'|'.join(NAMES)})s?`", text), where


def test_no_two_classes_share_a_name() -> None:
    modules = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(path.relative_to(ROOT / "src")))
    shared = {name: paths for name, paths in modules.items() if len(paths) > 1 and name not in SAME_IN_EACH}
    assert not shared


def test_the_picture_of_the_rooms_is_current() -> None:
    """Drawing it also fails if folders import each other."""
    assert rooms.PICTURE.read_text() == rooms.drawing(), "run `make docs`"


def test_every_folder_and_loose_module_has_its_layer() -> None:
    """Without one, import-linter would not look at it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert not any("ignore_imports" in contract for contract in contracts)
    layers = {name for layer in contracts[0]["layers"] for name in layer.split(" | ")}
    files = [path for path in (ROOT / "src" / "fragmenta").iterdir() if not path.name.startswith("__")]
    others = [path for path in (ROOT / "src").iterdir() if path.name.startswith("fragmenta_")]
    assert layers == {f"fragmenta.{path.stem}" for path in files} | {path.name for path in others}


def test_the_tests_mirror_the_rooms() -> None:
    """Every folder of tests is named after a room; faults/ has those that inject faults into whole runs."""
    rooms_of_tests = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and list(path.glob("test_*"))}
    packages = {path.name.removeprefix("fragmenta_") for path in (ROOT / "src").iterdir()}
    rooms_of_src = {path.name for path in (ROOT / "src" / "fragmenta").iterdir() if path.is_dir()}
    assert rooms_of_tests - {"faults"} <= rooms_of_src | packages
    assert not list((ROOT / "tests" / "support").rglob("test_*"))
