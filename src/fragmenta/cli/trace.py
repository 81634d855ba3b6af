"""`fragmenta trace`: run a few iterations of a run again, and show where their time goes."""

import dataclasses
import sys
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from fragmenta.cli.arguments import read_options
from fragmenta.command import command
from fragmenta.engines.kernel_listing import kernel_lines
from fragmenta.errors import ConfigError
from fragmenta.pictures.times import TIME_COLUMNS, time_rows
from fragmenta.profiling.timings import Timings, bottleneck
from fragmenta.runs.opening import load
from fragmenta.training.retrace import plan_of, retrace
from fragmenta.worker.backends.kernel import use_kernels


@dataclasses.dataclass(frozen=True)
class TraceOptions:
    """How much to record."""

    iterations: int = 20
    """Iterations to record, after a short warm-up."""
    kernels: Literal["on", "off"] = "off"
    """Record with generated kernels on an NVIDIA GPU, as `fragmenta train --kernels on` runs, and list them."""


def run(arguments: list[str]) -> int:
    """Write the timeline into the run directory and print where time goes."""
    name, options = read_options("trace", "RUN", TraceOptions, arguments)
    if options.iterations < 1:
        raise ConfigError(f"iterations is {options.iterations}: it must be at least 1")
    use_kernels(options.kernels == "on")
    opened = load(name)
    plan = plan_of(opened)
    print(f"compiling '{name}' again to record {options.iterations} iterations ...", flush=True)
    timings = retrace(opened, plan, options.iterations)
    Console(width=None if sys.stdout.isatty() else 120).print(times_table(timings))
    print("\n".join([bottleneck(timings), *kernel_lines(plan)]))
    print(how_to_look(Path(name)))
    return 0


def times_table(timings: Timings) -> Table:
    """Per replica: the time of an iteration, how much of it is work and waiting, and the bytes that cross."""
    table = Table(title="where the time of an iteration goes", title_justify="left", title_style="bold")
    for column in TIME_COLUMNS:
        table.add_column(column)
    for row in time_rows(timings):
        table.add_row(*row)
    return table


def how_to_look(run_dir: Path) -> str:
    """The path of the timeline and how to open it."""
    return (
        f"timeline {run_dir / 'trace.pftrace'}: drag it into https://ui.perfetto.dev (nothing is uploaded)\n"
        f"'{command('graph', run_dir)}' draws the graph with these times"
    )
