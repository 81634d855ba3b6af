"""`fragmenta train`: train, showing the plan first and then the progress."""

import contextlib
import dataclasses
import json as json_format
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fragmenta.cli.arguments import ClusterOptions, EnvFlags, PolicyName, read
from fragmenta.cli.config_file import config_text
from fragmenta.cli.trace import how_to_look
from fragmenta.engines import EngineOptions
from fragmenta.engines.hardware import ensure_cpu_devices, idle_gpu
from fragmenta.errors import ConfigError
from fragmenta.evaluation.periodic import EvaluationOptions
from fragmenta.progress.choosing import ProgressView, view_for
from fragmenta.runs.opening import load
from fragmenta.runs.saving import SaveOptions
from fragmenta.runs.sinks import TrackingOptions, parse_sinks
from fragmenta.training.options import RunOptions
from fragmenta.training.planning import AUTO, DEFAULT_ENGINE, is_open
from fragmenta.training.result import Result
from fragmenta.training.train import train
from fragmenta_host.options import cores


@dataclasses.dataclass(frozen=True)
class PolicyOptions:
    """The distribution policy and the engine."""

    policy: PolicyName = AUTO
    """Which stages run where; `fragmenta policies` lists them, and `fragmenta plan` compares them, as auto does. With
    auto,MODULE:FUNCTION it compares yours, too."""
    engine: str | None = None
    """What runs the fragments: local (threads), processes (on this machine), or ray (processes on a Ray cluster).
    Default: local, or under --policy auto whichever is faster of it and processes."""


@dataclasses.dataclass(frozen=True)
class PlacementOptions(ClusterOptions, PolicyOptions):
    """Where the fragments run."""

    merge: bool = True
    """Merge fragments and replicas that share a device."""
    deadline: float = 300.0
    """Timeout in seconds for a fragment to wait for another, and for a process to compile."""
    kernels: Literal["on", "off"] = "off"
    """On an NVIDIA GPU, run what treats all environments or samples alike as generated kernels where
    that is measured to be faster."""
    replan: bool = False
    """Under --policy auto: if training is more than 30% slower than predicted, continue under a faster plan."""


@dataclasses.dataclass(frozen=True)
class ResultOptions:
    """The seed, and what the run writes and prints."""

    seed: int = 0
    """The seed of networks, actions and environments: the same seed gives the same run."""
    seeds: int = 1
    """Train this many seeds, starting at --seed, as one program (`fused` only); each gets a subdirectory."""
    run_dir: Path | None = None
    """A new directory for configuration, metrics, graph, parameters and summary. Default: a new name under runs/."""
    sinks: str = "tensorboard"
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow or module:Class, with commas; or none."""
    start_from: Path | None = None
    """A run directory: start with its parameters instead of initial ones; everything else starts from scratch."""
    start_checkpoint: str | None = None
    """For --start-from: the checkpoint to start from: best, last or an iteration. Default: the end of the run."""
    stop_at_return: float | None = None
    """End the run once the mean return of the latest 100 episodes reaches this value."""
    trace: bool = False
    """Record some iterations: a timeline for ui.perfetto.dev, and times for `fragmenta graph RUN`."""
    json: bool = False
    """Print the summary as JSON and nothing else."""
    config: Path | None = None
    """A TOML file with values for flags, as --print-config writes it; flags on the command line win."""
    print_config: bool = False
    """Print the effective configuration as TOML, and do nothing else."""


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """All flags of `fragmenta train` but for the hyper-parameters, in the order of the help."""

    result: ResultOptions
    environment: EnvFlags
    placement: PlacementOptions
    saving: SaveOptions
    evaluation: EvaluationOptions
    tracking: TrackingOptions
    processes: EngineOptions


def run(arguments: list[str]) -> int:
    """Parse the flags, train, print the result."""
    algorithm, env, options = read("train", TrainOptions, arguments)
    result, placement = options.result, options.placement
    if result.print_config:
        print(config_text(algorithm, env, options))
        return 0
    if result.start_checkpoint and not result.start_from:
        raise ConfigError(f"start_checkpoint is '{result.start_checkpoint}', but there is no run: add --start-from RUN")
    run_dir = result.run_dir or new_run_dir(type(algorithm).__name__.lower(), env, placement.policy, str(result.seed))
    if is_open(placement.policy) and placement.engine is None and placement.cpu_devices is None and result.seeds == 1:
        ensure_cpu_devices(cores())  # for replicas on a CPU, if the planner finds that they pay
    cluster = placement.cluster(placement.engine or DEFAULT_ENGINE, options.processes)
    warning = idle_gpu()
    if warning:
        print(f"fragmenta: {warning}", file=sys.stderr)
    view = None if result.json else view_for(sys.stdout)

    def start() -> Result:
        return train(
            algorithm,
            env,
            policy=placement.policy,
            engine=placement.engine,
            seed=result.seed,
            seeds=result.seeds,
            cluster=cluster,
            run_dir=run_dir,
            watcher=view,
            progress=False,
            stop_at_return=result.stop_at_return,
            start_from=load(result.start_from, checkpoint=result.start_checkpoint) if result.start_from else None,
            options=RunOptions(
                options.environment,
                options.processes,
                options.saving,
                options.evaluation,
                parse_sinks(result.sinks),
                options.tracking,
                placement.merge,
                placement.deadline,
                result.trace,
                placement.kernels,
                placement.replan,
            ),
        )

    return show(view, run_dir, start, result.trace)


def show(view: ProgressView | None, run_dir: Path, start: Callable[[], Result], timeline: bool = False) -> int:
    """Train, and print the result: to the view, or as JSON if there is none."""
    try:
        # What an environment prints must not mix with the summary that a script reads.
        with contextlib.nullcontext() if view else contextlib.redirect_stdout(sys.stderr):
            result = start()
    finally:
        if view:
            view.close()
    if view:
        view.finished(result.summary, run_dir)
        if timeline:
            print(how_to_look(run_dir))
    else:
        print(json_format.dumps(result.summary))
    return 0


def new_run_dir(*words: str | None) -> Path:
    """A path under runs/ that has these words and the time in its name, and a number if two runs start in the same
    second."""
    named = "-".join(filter(None, (*words, time.strftime("%Y%m%d-%H%M%S"))))
    path = Path("runs") / re.sub(r"[:/,]", ".", named)
    candidate, count = path, 1
    while candidate.exists():
        count += 1
        candidate = path.with_name(f"{path.name}-{count}")
    return candidate
