"""What a person sees of a run: the plan, the compiling, the progress, the end."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fragmenta.algorithms import Algorithm
from fragmenta.graph import Plan, Program
from fragmenta.training.loop import Progress as RunProgress

PLAIN_EVERY = 2.0
"""Seconds between two lines where the output is not a terminal."""


def plan_table(plan: Plan, algorithm: Algorithm) -> Table:
    """What runs where, and what a replica gets."""
    table = Table(title=f"policy {plan.policy}", title_justify="left", title_style="bold")
    for column in ("fragment", "stages", "device", "replicas", "a replica gets", "crosses per iteration"):
        table.add_column(column)
    for program in plan.programs:
        fragment = program.fragment
        sent = sum(i.bytes_per_iteration for i in plan.interfaces if i.producer == fragment.name)
        together = " (one program)" if program.together else ""
        table.add_row(
            fragment.name,
            ", ".join(fragment.stages),
            ", ".join(dict.fromkeys(fragment.devices)),
            f"{fragment.replicas}{together}",
            _share(program, algorithm),
            f"{sent / 1e6:,.2f} MB out" if sent else "nothing",
        )
    return table


def _share(program: Program, algorithm: Algorithm) -> str:
    if program.fragment.axis == "agents" and program.parts > 1:
        return f"{program.graph.sizes['agents']:,} agents, {algorithm.steps_per_iteration:,} steps"
    envs, steps = algorithm.num_envs // program.parts, algorithm.steps_per_iteration // program.parts
    at_a_time = " at a time" if program.parts > program.fragment.replicas else ""
    return f"{envs:,} envs, {steps:,} steps{at_a_time}"


class PlainView:
    """Lines for logs and pipes."""

    def __init__(self) -> None:
        self._console = Console(width=120)
        self._last = 0.0

    def planned(self, plan: Plan, algorithm: Algorithm, environments: str) -> None:
        """Print the plan."""
        self._console.print(plan_table(plan, algorithm))
        print(f"environments: {environments}")
        print("compiling ...", flush=True)

    def compiled(self, seconds: float) -> None:
        """Print how long compiling took."""
        print(f"compiled in {seconds:.1f} s", flush=True)

    def progressed(self, progress: RunProgress) -> None:
        """Print a line every few seconds."""
        now = time.monotonic()
        if now - self._last < PLAIN_EVERY and progress.iteration < progress.iterations:
            return
        self._last = now
        left = (progress.iterations - progress.iteration) / progress.iteration
        seconds = progress.steps / progress.steps_per_second
        rate = f"{progress.steps_per_second:,.0f} steps/s"
        print(
            f"step {progress.steps:>12,}  return {_number(progress.return_mean):>8}  "
            f"{rate:>19}  {left * seconds:5.0f} s left  busy: {_shares(progress.busy)}{_lag(progress)}",
            flush=True,
        )

    def close(self) -> None:
        """Nothing is open."""

    def finished(self, summary: dict[str, Any], run_dir: Path) -> None:
        """Print the outcome."""
        print(_outcome(summary, run_dir))


class TerminalView:
    """A bar that moves, where the output is a terminal."""

    def __init__(self) -> None:
        self._console = Console()
        self._bar: Progress | None = None
        self._task = None
        self._shown = 0.0

    def planned(self, plan: Plan, algorithm: Algorithm, environments: str) -> None:
        """Show the plan, then that compiling goes on."""
        self._console.print(plan_table(plan, algorithm))
        self._console.print(f"environments: {environments}", highlight=False)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=14),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            _Details(),
            console=self._console,
        )
        self._bar.start()
        self._task = self._bar.add_task("compiling", total=None)

    def compiled(self, seconds: float) -> None:
        """Turn to training."""
        assert self._bar is not None
        self._console.print(f"compiled in {seconds:.1f} s")
        self._bar.remove_task(self._task)  # pyright: ignore[reportArgumentType]
        self._task = self._bar.add_task("training", total=1.0)

    def progressed(self, progress: RunProgress) -> None:
        """Move the bar, ten times a second at most."""
        now = time.monotonic()
        if self._bar is None or (now - self._shown < 0.1 and progress.iteration < progress.iterations):
            return
        self._shown = now
        details = (
            f"return {_number(progress.return_mean)}  {progress.steps_per_second:,.0f} steps/s  "
            f"busy: {_shares(progress.busy)}{_lag(progress)}"
        )
        share = progress.iteration / progress.iterations
        self._bar.update(self._task, completed=share, details=details)  # pyright: ignore[reportArgumentType]

    def close(self) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.stop()

    def finished(self, summary: dict[str, Any], run_dir: Path) -> None:
        """Print the outcome."""
        self._console.print(_outcome(summary, run_dir), highlight=False)


class _Details(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(task.fields.get("details", ""), no_wrap=True, overflow="ellipsis")


def _outcome(summary: dict[str, Any], run_dir: Path) -> str:
    return (
        f"return {_number(summary['return_mean'])} over the latest 100 episodes, "
        f"{summary['total_steps']:,} steps at {summary['steps_per_second']:,.0f} steps/s "
        f"(compiling {summary['compile_seconds']:.1f} s, in all {summary['wall_seconds']:.1f} s)\n"
        f"parameters sha256 {summary['params_sha256'][:16]}, run directory {run_dir}"
    )


def _lag(progress: RunProgress) -> str:
    return "" if progress.lag is None else f"  lag {progress.lag}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _shares(busy: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in busy.items())
