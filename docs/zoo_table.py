"""The table in zoo.md, written from the recipes: `python docs/zoo_table.py` writes it again."""

import itertools
from pathlib import Path

from fragmenta.zoo import RECIPES, Recipe

PAGE = Path(__file__).parent / "zoo.md"
HEAD = "| recipe | algorithm, environment | steps | expected | measured | others |\n|---|---|---|---|---|---|\n"


def row(recipe: Recipe) -> str:
    measured = ", ".join(f"{value:,g}" for value in recipe.measured) or "not run yet"
    cells = f"`{recipe.name}`", f"`{recipe.algorithm}` {recipe.env}", f"{recipe.steps:,}", f"{recipe.expected:,g}"
    others = f"[{recipe.reference.name}]({recipe.reference.url}): {recipe.reference.words}"
    return f"| {' | '.join((*cells, measured, others))} |\n"


def table() -> str:
    return HEAD + "".join(map(row, RECIPES.values()))


def with_table(page: str) -> str:
    """The page with the current table in place of the one that it has."""
    before, _, rest = page.partition(HEAD)
    lines = rest.splitlines(keepends=True)
    after = itertools.dropwhile(lambda line: line.startswith("|"), lines)
    return before + table() + "".join(after)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
