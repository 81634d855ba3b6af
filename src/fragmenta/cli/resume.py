"""`fragmenta resume`: continue a run from its latest checkpoint, under the same or another distribution policy."""

import dataclasses
import sys
from pathlib import Path

from fragmenta.cli.arguments import ClusterOptions, PolicyName, read_options
from fragmenta.cli.train import show
from fragmenta.engines import EngineOptions
from fragmenta.progress.choosing import view_for
from fragmenta.runs.run_directory import read_config
from fragmenta.training.result import Result
from fragmenta.training.train import resume


@dataclasses.dataclass(frozen=True)
class ResumeOptions(ClusterOptions):
    """Settings to change; the others stay as they were."""

    policy: PolicyName | None = None
    """The distribution policy: which stages run where. Synchronous ones never change the result."""
    engine: str | None = None
    """What runs the fragments: local, processes or ray."""
    address: str | None = None
    """For --engine ray: the cluster to run on."""
    total_steps: int | None = None
    """Environment steps in total, including those already done."""
    checkpoint: str = "last"
    """The checkpoint to continue from: best, last or an iteration. Everything after it is discarded."""
    stop_at_return: float | None = None
    """End the run once the mean return of the latest 100 episodes reaches this value."""
    json: bool = False
    """Print the summary as JSON and nothing else."""


def run(arguments: list[str]) -> int:
    """Parse the flags, resume the run, print the result."""
    path, options = read_options("resume", "RUN", ResumeOptions, arguments)
    moves = (options.shards, options.replay != "device" or None, options.learners != 1 or None)
    changes = (options.replicas, options.cpu_devices, options.lag or None, options.max_lag, *moves)
    engine_options = EngineOptions(address=options.address) if options.address else None
    cluster = None
    if any(value is not None for value in changes):
        # Do not open the run yet: a user's module may create arrays, which fixes the number of devices.
        engine = options.engine or read_config(Path(path)).get("engine", "local")
        cluster = options.cluster(engine, engine_options)
    view = None if options.json else view_for(sys.stdout)

    def start() -> Result:
        engine_settings = {"engine": options.engine, "engine_options": engine_options}
        settings = {"checkpoint": options.checkpoint, "stop_at_return": options.stop_at_return}
        display = {"watcher": view, "progress": False}
        return resume(path, options.policy, cluster, options.total_steps, **engine_settings, **settings, **display)

    return show(view, Path(path), start)
