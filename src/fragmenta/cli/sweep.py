"""`fragmenta sweep`: search for good hyper-parameters."""

import dataclasses
import json as json_format
import re
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fragmenta.cli.arguments import EnvFlags, read
from fragmenta.command import command
from fragmenta.search.ranges import parse_search
from fragmenta.search.showing import SHOWN, SweepLines, value_text
from fragmenta.search.sweep import JobOptions, Sweep, sweep


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """What to search, and how."""

    search: tuple[str, ...] = ()
    """FIELD=RANGE: entropy_cost=0,0.01 or gamma=uniform:0.9:0.99 or learning_rate=log:1e-4:1e-2 (grid: with :5)."""
    method: str = "random"
    """grid, random, tpe (Optuna, in batches), or pbt (population-based training)."""
    trials: int | None = None
    """How many trials to train; with pbt, the members of the population. Default: 64, or all points of a grid."""
    seeds: int = 1
    """Seeds per trial, starting at --seed; a trial's return is their mean."""
    seed: int = 0
    """The first seed, and that of the search."""
    run_dir: Path | None = None
    """The directory of the sweep; the same command with the directory of an earlier one continues it."""
    json: bool = False
    """Print the ranked trials as JSON and nothing else."""


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """All flags of `fragmenta sweep` but for the hyper-parameters, in the order of the help."""

    searching: SearchOptions
    jobs: JobOptions
    environment: EnvFlags


def run(arguments: list[str]) -> int:
    """Parse the flags, search, print the best trials."""
    algorithm, env, flags = read("sweep", SweepOptions, arguments)
    options = flags.searching
    stamp = time.strftime("%Y%m%d-%H%M%S")
    named = re.sub(r"[:/]", ".", f"sweep-{type(algorithm).__name__.lower()}-{env}-{options.method}-{stamp}")
    result = sweep(
        algorithm, env, parse_search(options.search), options.run_dir or Path("runs") / named,
        trials=options.trials, method=options.method, seeds=options.seeds, seed=options.seed,
        env_options=flags.environment, options=flags.jobs,
        watcher=None if options.json else SweepLines(sys.stdout), progress=False,
    )  # fmt: skip
    if options.json:
        print(json_format.dumps(json_format.loads((result.path / "trials.json").read_text())))
        return 0
    _show(result)
    return 0


def _show(result: Sweep) -> None:
    table = Table(title=f"the best of {len(result.trials)} trials", title_justify="left", title_style="bold")
    for column in ("trial", *result.best.values, "return"):
        table.add_column(column, justify="right")
    for trial in result.trials[:SHOWN]:
        ending = "diverged" if trial.diverged else "-" if trial.return_mean is None else f"{trial.return_mean:,.1f}"
        table.add_row(str(trial.number), *map(value_text, trial.values.values()), ending)
    Console(width=None if Console().is_terminal else 140).print(table)
    print(f"all trials: {result.path / 'trials.csv'}, trials.json, sweep.png")
    if result.best_run:
        commands = "\n".join(f"  {command(name, result.best_run)}" for name in ("eval", "play"))
        print(f"the best as a run:\n{commands}")
