"""`fragmenta resume`: go on with a run from its latest checkpoint, under the same policy or another."""

import dataclasses
import sys
from pathlib import Path

from fragmenta.cli.arguments import ClusterOptions, PolicyName, read_options
from fragmenta.cli.train import show
from fragmenta.cli.view import PlainView, TerminalView
from fragmenta.engines import EngineOptions
from fragmenta.runs.run_directory import read_config
from fragmenta.training.loop import Result
from fragmenta.training.train import resume


@dataclasses.dataclass(frozen=True)
class ResumeOptions(ClusterOptions):
    """What is to be other than before; the rest is as it was."""

    policy: PolicyName | None = None
    """Which part of the loop runs where. Synchronous policies never change the result."""
    engine: str | None = None
    """What runs the fragments: local, processes or ray."""
    address: str | None = None
    """For --engine ray: the cluster to run on."""
    total_steps: int | None = None
    """Environment steps in total, those before included."""
    json: bool = False
    """Print the summary as JSON and nothing else."""


def run(arguments: list[str]) -> int:
    """Read the flags, go on, print what came of it."""
    path, options = read_options("resume", "RUN", ResumeOptions, arguments)
    asked = (options.replicas, options.cpu_devices, options.lag or None, options.max_lag)
    engine_options = EngineOptions(address=options.address) if options.address else None
    cluster = None
    if any(value is not None for value in asked):
        # Not by opening the run: a module of the user's may make arrays, which fixes the number of devices.
        engine = options.engine or read_config(Path(path)).get("engine", "local")
        cluster = options.cluster(engine, engine_options)
    view = None if options.json else TerminalView() if sys.stdout.isatty() else PlainView()

    def start() -> Result:
        on = {"engine": options.engine, "engine_options": engine_options}
        return resume(path, options.policy, cluster, options.total_steps, watcher=view, **on)

    return show(view, Path(path), start)
