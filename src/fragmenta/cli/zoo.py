"""`fragmenta zoo`: list the recipes, or train some and check that they reach what they should."""

import collections
import dataclasses
import sys
import traceback
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
from fragmenta.errors import ConfigError, StorageError
from fragmenta.training.stopping import NotFiniteError, StoppedError
from fragmenta.zoo import RECIPES, Recipe, RecipeCheck, recipe_named, train_recipe
from fragmenta_core.faults import EnvironmentFaultError

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


@dataclasses.dataclass(frozen=True)
class RecipeResult:
    """What became of a recipe: a row of the results."""

    recipe: Recipe
    verdict: str
    """ok, skipped, failed, or what is missing."""
    check: RecipeCheck | None = None
    """What it reached; None if it was not trained to the end."""
    reason: str = ""
    """Why it was not."""

    @property
    def is_ok(self) -> bool:
        """Whether it passed, or could not be tried here."""
        return self.verdict in ("ok", "skipped")


def run(arguments: list[str]) -> int:
    """List the recipes, or train and check some; exit code 1 if one fails or is below what it should reach."""
    options = read_flags("zoo", ZooOptions, arguments)
    if options.names and options.all:
        raise ConfigError(f"'{options.names[0]}' was named, but --all trains every recipe: give one or the other")
    if options.seeds < 1:
        raise ConfigError(f"seeds is {options.seeds}: it must be at least 1")
    if not options.names and not options.all:
        _print(_listing())
        print(f"train and check one: {command('zoo', 'ppo-cartpole')}")
        return 0
    recipes, results = _runnable() if options.all else (_chosen(options.names), [])
    if warning := idle_gpu():
        print(f"fragmenta: {warning}", file=sys.stderr)
    if len(options.names) == 1:
        return 0 if _train(recipes[0], options, options.run_dir).is_ok else 1
    try:
        for recipe in recipes:
            results.append(_tried(recipe, options))
    finally:  # of an interrupted command, too: it may have trained for hours
        if results:
            _print(_results_table(results))
            print(_summary(results), flush=True)
    return 0 if all(result.is_ok for result in results) else 1


def _chosen(names: tuple[str, ...]) -> list[Recipe]:
    """The recipes with these names; ConfigError, before any is trained, if one is unknown or lacks its package."""
    recipes = [recipe_named(name) for name in names]
    for recipe in recipes:
        make(recipe.env)
    return recipes


def _runnable() -> tuple[list[Recipe], list[RecipeResult]]:
    """The recipes whose environments can be made here, and why the others cannot."""
    recipes, skipped = [], []
    for recipe in RECIPES.values():
        try:
            make(recipe.env)
        except ConfigError as error:
            print(f"skipping {recipe.name}: {error}", flush=True)
            skipped.append(RecipeResult(recipe, "skipped", reason=str(error)))
        else:
            recipes.append(recipe)
    return recipes, skipped


def _tried(recipe: Recipe, options: ZooOptions) -> RecipeResult:
    """Train one of several recipes; whatever fails in it must not lose the others."""
    try:
        check = _train(recipe, options, options.run_dir / recipe.name if options.run_dir else None)
    except StoppedError:
        raise
    except (ConfigError, NotFiniteError, StorageError) as error:
        reason = str(error)
    except Exception as error:
        of_environment = error.trace if isinstance(error, EnvironmentFaultError) else ""
        print(of_environment or "".join(traceback.format_exception(error)), end="", file=sys.stderr, flush=True)
        reason = traceback.format_exception_only(error)[-1].strip()
    else:
        return RecipeResult(recipe, check.verdict, check)
    print(f"{recipe.name}: failed: {reason}", flush=True)
    return RecipeResult(recipe, "failed", reason=reason)


def _train(recipe: Recipe, options: ZooOptions, run_dir: Path | None) -> RecipeCheck:
    run_dir = run_dir or new_run_dir("zoo", recipe.name, str(options.seed))
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


def _results_table(results: list[RecipeResult]) -> Table:
    table = Table()
    table.add_column("recipe", no_wrap=True)
    for column in ("steps", "expected", "reached"):
        table.add_column(column, justify="right")
    table.add_column("")
    for result in results:
        recipe, check = result.recipe, result.check
        steps, reached = (f"{check.steps:,}", check.reached) if check else ("", "")
        verdict = f"{result.verdict}: {result.reason}" if result.reason else result.verdict
        cells = recipe.name, steps, f"{recipe.expected:,g}", reached, verdict
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _summary(results: list[RecipeResult]) -> str:
    """How many recipes ended in which way."""
    counts = collections.Counter(result.verdict.partition(":")[0] for result in results)
    return f"{len(results)} recipes: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}"


def _print(table: Table) -> None:
    Console(width=None if Console().is_terminal else WIDTH).print(table)
