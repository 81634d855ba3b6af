"""`fragmenta runs`: list the runs in a folder, with their status."""

import dataclasses
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fragmenta.cli.arguments import read_flags
from fragmenta.errors import ConfigError
from fragmenta.pictures.run_files import read_run_files, recent_returns
from fragmenta.runs.history import status_of
from fragmenta.runs.run_directory import read_config


@dataclasses.dataclass(frozen=True)
class RunsOptions:
    """Which runs to list."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """The folder with run directories."""


def run(arguments: list[str]) -> int:
    """Print a table of the runs, the latest last."""
    folder = read_flags("runs", RunsOptions, arguments).folder
    if not folder.is_dir():
        raise ConfigError(f"there is no folder '{folder}': give one with run directories, as in fragmenta runs my_runs")
    paths = sorted(file.parent for file in folder.glob("*/config.json"))
    if not paths:
        raise ConfigError(f"folder '{folder}' has no runs: each is a directory with a config.json")
    table = Table()
    for column in ("run", "algorithm", "environment", "policy"):
        table.add_column(column, overflow="fold")
    for column in ("steps", "return"):
        table.add_column(column, justify="right")
    table.add_column("status")
    table.add_column("since", no_wrap=True)
    rows = [(status_of(path), path) for path in paths]
    for (status, since), path in sorted(rows, key=lambda row: row[0][1]):
        table.add_row(*(Text(cell) for cell in (path.name, *_cells(path), status, since[:16].replace("T", " ") or "-")))
    Console(width=None if Console().is_terminal else 160).print(table)
    return 0


def _cells(path: Path) -> tuple[str, ...]:
    """Algorithm, environment, distribution policy, steps and return of a run; what cannot be read is a dash."""
    try:
        config: Any = read_config(path)
        names = tuple(str(config.get(name, "-")) for name in ("algorithm", "env", "policy"))
    except (ConfigError, AttributeError):
        return ("-",) * 5
    try:
        files = read_run_files(path)
    except ConfigError:  # before its first iteration, or damaged
        return (*names, "0", "-")
    recent = recent_returns(files).values
    return (*names, f"{files.records[-1]['steps']:,}", f"{recent[-1]:,.1f}" if len(recent) else "-")
