"""Terminal output of a run: the plan, compilation, progress, and result."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fragmenta.algorithms import Algorithm
from fragmenta.command import command
from fragmenta.engines import ProcessLocation
from fragmenta.graph import Plan, Program
from fragmenta.graph.price import prices, whole_stages
from fragmenta.progress.live import Picture, clock, number, seconds_left
from fragmenta.progress.watching import Progress
from fragmenta.runs.describing import only_in_python
from fragmenta.runs.run_directory import read_json

PLAIN_EVERY = 2.0
"""Seconds between two lines if the output is not a terminal."""
PER_SECOND = 8
"""Refresh rate of the terminal."""
NEXT = {
    "eval": "evaluate the policy",
    "play": "record a video",
    "report": "write an HTML report",
    "resume": "continue training, with --total-steps",
}
"""Commands to run next on a run directory."""


PRICES = 4
"""Maximum number of costs of replicas to list before a run."""


def plan_table(plan: Plan, algorithm: Algorithm, steps: int) -> Table:
    """A table of what runs where, and each replica's share."""
    table = Table(title=f"distribution policy {plan.policy}", title_justify="left", title_style="bold")
    for column in ("fragment", "stages", "device", "replicas", "per replica", "crosses per iteration"):
        table.add_column(column)
    for program in plan.programs:
        fragment = program.fragment
        sent = sum(i.bytes_per_iteration for i in plan.interfaces if i.producer == fragment.name)
        together = "" if not program.together else " (one program)" if program.replicas == 1 else " (with collectives)"
        table.add_row(
            fragment.name,
            ", ".join(fragment.stages),
            ", ".join(dict.fromkeys(fragment.devices)),
            f"{fragment.replicas}{together}",
            _share(program, algorithm, steps),
            f"{sent / 1e6:,.2f} MB out" if sent else "nothing",
        )
    return table


def price_lines(plan: Plan) -> list[str]:
    """The costs of replicas that exceed a few percent of their computation."""
    significant = [price for price in prices(plan) if price.is_significant]
    undivided = [(p.fragment.name, stage) for p in plan.programs for stage in whole_stages(p)]
    lines = [
        f"every replica of {fragment} computes all of {stage}: more replicas do not speed it up"
        for fragment, stage in undivided
    ]
    lines += [f"cost of replicas: {price}" for price in significant[:PRICES]]
    more = len(significant) - PRICES
    return lines + ([f"and {more} more: '{command('graph')}' lists them"] if more > 0 else [])


def _share(program: Program, algorithm: Algorithm, steps: int) -> str:
    axis, graph = program.fragment.axis, program.graph
    if axis not in (None, "envs") and program.parts > 1:
        return f"{graph.sizes[axis] // program.parts:,} {graph.nouns[axis]}, {steps:,} steps"
    envs, steps = algorithm.num_envs // program.parts, steps // program.parts
    at_a_time = " at a time" if program.parts > program.fragment.replicas else ""
    return f"{envs:,} envs, {steps:,} steps{at_a_time}"


class PlainView:
    """Plain lines, for logs and pipes."""

    def __init__(self, output: TextIO) -> None:
        self._console, self._output = Console(file=output, width=120), output
        self._last = 0.0

    def planned(self, plan: Plan, algorithm: Algorithm, steps: int, environments: str) -> None:
        """Print the plan."""
        self._console.print(plan_table(plan, algorithm, steps))
        self._print("\n".join([*price_lines(plan), f"environments: {environments}"]))
        self._print("compiling ...")

    def placed(self, workers: Sequence[ProcessLocation]) -> None:
        """Print where the processes run."""
        self._print("\n".join(_where(workers)))

    def compiled(self, seconds: float) -> None:
        """Print how long compiling took."""
        self._print(f"compiled in {seconds:.1f} s")

    def progressed(self, progress: Progress) -> None:
        """Print a line every few seconds."""
        now = time.monotonic()
        if now - self._last < PLAIN_EVERY and progress.iteration < progress.iterations:
            return
        self._last = now
        rate = f"{progress.steps_per_second:,.0f} steps/s"
        self._print(
            f"step {progress.steps:>12,}  return {number(progress.return_mean):>8}  {rate:>19}  "
            f"{clock(seconds_left(progress)):>7} left{_details(progress.record)}"
        )

    def remarked(self, text: str) -> None:
        """Print the line."""
        self._print(text)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def finished(self, summary: dict[str, Any], run_dir: Path | None) -> None:
        """Print the summary."""
        self._print(summary_text(summary, run_dir))

    def _print(self, text: str) -> None:
        print(text, file=self._output, flush=True)


class TerminalView:
    """A live view, for output to a terminal."""

    def __init__(self, output: TextIO) -> None:
        self._console = Console(file=output)
        self._picture = Picture()
        self._live: Live | None = None

    def planned(self, plan: Plan, algorithm: Algorithm, steps: int, environments: str) -> None:
        """Print the plan, then show that the run is compiling."""
        self._console.print(plan_table(plan, algorithm, steps))
        self._console.print(
            "\n".join([*price_lines(plan), f"environments: {environments}"]), highlight=False, markup=False
        )
        self._picture = Picture()
        # It draws in its own thread, so that training does not wait for the terminal.
        self._live = Live(self._picture, console=self._console, refresh_per_second=PER_SECOND)
        self._live.start()

    def placed(self, workers: Sequence[ProcessLocation]) -> None:
        """Print where the processes run, above the live view."""
        self._console.print("\n".join(_where(workers)), highlight=False, markup=False)

    def compiled(self, seconds: float) -> None:
        """Print how long compiling took; the live view changes with the first iteration."""
        self._picture.wait("the first iteration")
        self._console.print(f"compiled in {seconds:.1f} s", highlight=False)

    def progressed(self, progress: Progress) -> None:
        """Store the progress for the next refresh."""
        self._picture.add(progress)

    def remarked(self, text: str) -> None:
        """Print the line above the live view."""
        self._console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        """Draw a last time, and release the terminal."""
        if self._live is not None:
            self._live.stop()

    def finished(self, summary: dict[str, Any], run_dir: Path | None) -> None:
        """Print the summary."""
        self._console.print(summary_text(summary, run_dir), highlight=False, soft_wrap=True, markup=False)


def _where(workers: Sequence[ProcessLocation]) -> list[str]:
    width = max(len(worker.worker) for worker in workers)
    return [
        f"{worker.worker:<{width}}  on {worker.host}{f', node {worker.node[:8]}' if worker.node else ''}, "
        f"{worker.device}, process {worker.pid}"
        for worker in workers
    ]


def summary_text(summary: dict[str, Any], run_dir: Path | None) -> str:
    """The result of a run, where its files are, and what to do next."""
    seeds = summary.get("per_seed", ())
    lines = [] if summary["ended"] == "completed" else [f"ended early: {summary['ended']}"]
    lines += [
        f"return {number(summary['return_mean'])} over the latest 100 episodes, "
        f"{summary['total_steps']:,} steps at {summary['steps_per_second']:,.0f} steps/s",
        f"compiling {summary['compile_seconds']:.1f} s, total {summary['wall_seconds']:.1f} s, "
        f"parameters sha256 {summary['params_sha256'][:16]}",
        *(f"seed {seed_summary['seed']}: return {number(seed_summary['return_mean'])}" for seed_summary in seeds),
    ]
    if run_dir is None:
        return "\n".join(lines)
    lines += [f"run directory {run_dir}", *(f"picture {path}" for path in sorted(run_dir.glob("*.png")))]
    if opened := only_in_python(run_dir, read_json(run_dir / "config.json") or {}):
        return "\n".join([*lines, f"  {command('report', run_dir)}  # {NEXT['report']}", f"  {opened}  # in Python"])
    one = shlex.quote(str(run_dir / f"seed-{seeds[0]['seed']}" if seeds else run_dir))
    if seeds:
        lines.append(f"  {command('compare', run_dir)}  # intervals over the seeds")
    width = max(map(len, ["compare"] if seeds else NEXT))
    for name, purpose in NEXT.items():
        what = one if name == "play" else shlex.quote(str(run_dir))  # a video shows one policy
        lines.append(f"  {command()} {name:<{width}} {what}  # {purpose}")
    return "\n".join(lines)


def _details(record: dict[str, Any]) -> str:
    """Busy shares, how full channels are, and the lag."""
    parts = []
    for name, prefix in (("busy", "busy/"), ("fill", "fill/")):
        shares = [f"{key[len(prefix) :]} {share:.0%}" for key, share in record.items() if key.startswith(prefix)]
        parts += [f"  {name}: {', '.join(shares)}"] if shares else []
    return "".join(parts) + (f"  lag {record['lag']}" if "lag" in record else "")
