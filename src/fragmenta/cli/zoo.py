"""`fragmenta zoo`: list the recipes, or train some and check that they reach what they should."""

import dataclasses
import sys
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fragmenta.cli.arguments import read_flags
from fragmenta.cli.train import new_run_dir
from fragmenta.command import command
from fragmenta.engines.hardware import idle_gpu
from fragmenta.envs import make
from fragmenta.errors import ConfigError
from fragmenta.zoo import RECIPES, Recipe, RecipeCheck, recipe_named, train_recipe

WIDTH = 170
"""Of tables that are not printed to a terminal: no cell is broken."""


@dataclasses.dataclass(frozen=True)
class ZooOptions:
    """Which recipes to train; without any, all are listed."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of recipes, as the list has them."""
    all: bool = False
    """Train all recipes whose packages are installed."""
    seed: int = 0
    """The first seed."""
    seeds: int = 1
    """Train this many seeds, starting at --seed; each must reach the expected return."""
    total_steps: int | None = None
    """Environment steps in total, instead of those of the recipe."""
    run_dir: Path | None = None
    """A new directory for the run, with a subdirectory for each of several recipes. Default: a new name under runs/."""


def run(arguments: list[str]) -> int:
    """List the recipes, or train and check some; exit code 1 if one is below what it should reach."""
    options = read_flags("zoo", ZooOptions, arguments)
    if options.names and options.all:
        raise ConfigError(f"'{options.names[0]}' was named, but --all trains every recipe: give one or the other")
    if options.seeds < 1:
        raise ConfigError(f"seeds is {options.seeds}: it must be at least 1")
    if not options.names and not options.all:
        _print(_listing())
        print(f"train and check one: {command('zoo', 'ppo-cartpole')}")
        return 0
    recipes = _runnable() if options.all else _chosen(options.names)
    if warning := idle_gpu():
        print(f"fragmenta: {warning}", file=sys.stderr)
    checks = [_train(recipe, options, len(recipes) > 1) for recipe in recipes]
    if len(checks) > 1:
        _print(_results(checks))
    return 0 if all(check.is_ok for check in checks) else 1


def _chosen(names: tuple[str, ...]) -> list[Recipe]:
    """The recipes with these names; ConfigError, before any is trained, if one is unknown or lacks its package."""
    recipes = [recipe_named(name) for name in names]
    for recipe in recipes:
        make(recipe.env)
    return recipes


def _runnable() -> list[Recipe]:
    """The recipes whose environments can be made here; says why the others cannot."""
    recipes = []
    for recipe in RECIPES.values():
        try:
            make(recipe.env)
        except ConfigError as error:
            print(f"skipping {recipe.name}: {error}", flush=True)
        else:
            recipes.append(recipe)
    return recipes


def _train(recipe: Recipe, options: ZooOptions, is_one_of_several: bool) -> RecipeCheck:
    run_dir = options.run_dir or new_run_dir("zoo", recipe.name, str(options.seed))
    if options.run_dir and is_one_of_several:
        run_dir = options.run_dir / recipe.name
    flags = ["--seed", options.seed] if options.seed else []
    if options.seeds > 1 and not make(recipe.env).host_pool:  # on the host, each seed is a run of its own
        flags += ["--seeds", options.seeds]
    print(f"{recipe.name}: {command(*recipe.train_arguments(options.total_steps), *flags)}", flush=True)
    check = train_recipe(recipe, options.seed, options.seeds, options.total_steps, run_dir)
    print(f"{recipe.name}: {check}", flush=True)
    return check


def _listing() -> Table:
    table = Table()
    for column in ("recipe", "algorithm", "environment"):
        table.add_column(column, no_wrap=True)
    for column in ("steps", "expected", "measured"):
        table.add_column(column, justify="right")
    table.add_column("compare with")
    for recipe in RECIPES.values():
        measured = ", ".join(f"{value:,g}" for value in recipe.measured) or "not run yet"
        cells = recipe.name, recipe.algorithm, recipe.env, f"{recipe.steps:,}", f"{recipe.expected:,g}", measured
        table.add_row(*(Text(cell) for cell in (*cells, recipe.source)))
    return table


def _results(checks: list[RecipeCheck]) -> Table:
    table = Table()
    table.add_column("recipe", no_wrap=True)
    for column in ("steps", "expected", "reached"):
        table.add_column(column, justify="right")
    table.add_column("")
    for check in checks:
        recipe = check.recipe
        cells = recipe.name, f"{recipe.steps:,}", f"{recipe.expected:,g}", check.reached
        table.add_row(*(Text(cell) for cell in cells), Text("ok" if check.is_ok else "below"))
    return table


def _print(table: Table) -> None:
    Console(width=None if Console().is_terminal else WIDTH).print(table)
