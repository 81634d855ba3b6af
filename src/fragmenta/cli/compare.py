"""`fragmenta compare`: compare several runs in a table and a picture."""

import dataclasses
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fragmenta.cli.arguments import read_flags
from fragmenta.command import command
from fragmenta.errors import ConfigError
from fragmenta.pictures.comparison import Group, arrival, group_runs, remarks, target_return
from fragmenta.pictures.comparison_picture import comparison_figure
from fragmenta.pictures.run_files import read_run_files, recent_returns
from fragmenta.pictures.style import save, short

KINDS = (".png", ".svg", ".pdf")


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """The runs to compare, and where to write the picture."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories. Runs that differ only in their seed form one group, and so do the seeds of one run."""
    out: Path = Path("comparison.png")
    """The picture to write: a .png, .svg or .pdf file."""
    share: float = 0.9
    """The table shows when each group first reached this share of the way to the best final return of all groups."""


def run(arguments: list[str]) -> int:
    """Group the runs, print the table, draw the picture."""
    options = read_flags("compare", CompareOptions, arguments)
    _validate(options)
    runs = [one for path in options.runs for one in read_run_files(path).by_seed]
    for files in runs:
        if not len(recent_returns(files).steps):
            raise ConfigError(f"no episode ended in run '{files.path}': leave it out, or train it longer")
    groups = group_runs(runs)
    console = Console(width=None if Console().is_terminal else 140)
    for env in dict.fromkeys(group.env for group in groups):
        target = target_return(groups, env, options.share)
        console.print(_table(env, [group for group in groups if group.env == env], target))
    for line in remarks(groups):
        console.print(f"note: {line}", highlight=False, markup=False)
    try:
        save(comparison_figure(groups), options.out)
    except OSError as error:
        raise ConfigError(f"cannot write '{options.out}': {error.strerror}") from None
    console.print(f"picture: {options.out}", highlight=False, markup=False)
    return 0


def _validate(options: CompareOptions) -> None:
    if not options.runs:
        raise ConfigError(f"usage: {command()} compare RUN RUN ... [--out FILE.png], as in: {command()} compare runs/*")
    if options.out.suffix not in KINDS:
        raise ConfigError(f"out is '{options.out}': its name must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if not options.out.parent.is_dir():
        raise ConfigError(f"cannot write '{options.out}': there is no directory '{options.out.parent}'")
    if not 0 < options.share <= 1:
        raise ConfigError(f"share is {options.share}: it must be more than 0 and at most 1")
    paths: set[Path] = set()
    for path in options.runs:
        if path.resolve() in paths:
            raise ConfigError(f"run '{path}' is given twice: give each once")
        paths.add(path.resolve())


def _table(env: str, groups: list[Group], target: float) -> Table:
    table = Table(title=env, title_justify="left", title_style="bold")
    table.add_column("group", overflow="fold")
    for column in ("seeds", "final return", "95% interval", "best", "steps/s", f"return {target:,.1f} reached after"):
        table.add_column(column, justify="right")
    for group in groups:
        final = group.final
        interval = "-" if final.low is None or final.high is None else f"{final.low[0]:,.1f} to {final.high[0]:,.1f}"
        table.add_row(
            Text(group.label),
            str(len(group.runs)),
            f"{final.middle[0]:,.1f}",
            interval,
            "-" if group.best is None else f"{group.best:,.1f}",
            "-" if group.steps_per_second is None else f"{group.steps_per_second:,.0f}",
            _arrival_text(group, target),
        )
    return table


def _arrival_text(group: Group, target: float) -> str:
    first = arrival(group, target)
    if first is None:
        return "-"
    fraction = "" if first.reached == len(group.runs) else f" ({first.reached} of {len(group.runs)})"
    return f"{first.seconds:,.1f} s, {short(first.steps)} steps{fraction}"
