"""`fragmenta train`: train, with the plan before and the progress while it goes."""

import dataclasses
import json as json_format
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fragmenta.cli.arguments import ClusterOptions, PolicyName, read
from fragmenta.cli.trace import how_to_look
from fragmenta.cli.view import PlainView, TerminalView
from fragmenta.engines import EngineOptions
from fragmenta.engines.hardware import idle_gpu
from fragmenta.envs import EnvOptions
from fragmenta.evaluation.periodic import EvaluationOptions
from fragmenta.runs.saving import SaveOptions
from fragmenta.runs.sinks import parse_sinks
from fragmenta.training.loop import Result
from fragmenta.training.train import train


@dataclasses.dataclass(frozen=True)
class TrainOptions(ClusterOptions, EngineOptions, EnvOptions, SaveOptions, EvaluationOptions):
    """Where and how to run."""

    policy: PolicyName | None = None
    """Which part of the loop runs where; `fragmenta policies` lists them. Synchronous ones never change the result.
    By default fused, or single_learner_coarse for environments on the host."""
    engine: str = "local"
    """What runs the fragments: local (threads in this process), processes (a process for each, on this machine), or
    ray (a process for each, on a Ray cluster)."""
    merge: bool = True
    """Join fragments and replicas that share a device."""
    seed: int = 0
    seeds: int = 1
    """Train so many seeds, from --seed on, as one program (policy fused only); each gets a directory in the run's."""
    run_dir: Path | None = None
    """A new directory for configuration, metrics, graph, parameters and summary. Default: a name under runs/."""
    deadline: float = 300.0
    """Seconds that one fragment waits for another before the run ends and says who waited for what; a process of an
    engine may take as long to compile."""
    sinks: str = "tensorboard"
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow, several with commas, or none."""
    trace: bool = False
    """Record some iterations: `trace.pftrace`, a timeline to open at ui.perfetto.dev, and `timings.json`, which
    `fragmenta graph RUN` draws."""
    json: bool = False
    """Print the summary as JSON and nothing else."""


def run(arguments: list[str]) -> int:
    """Read the flags, train, print what came of it."""
    algorithm, env, options = read("train", TrainOptions, arguments)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    named = "-".join(filter(None, (type(algorithm).__name__.lower(), env, options.policy, str(options.seed), stamp)))
    default = Path("runs") / re.sub(r"[:/]", ".", named)
    run_dir = options.run_dir or _unused(default)
    engine_options = EngineOptions(options.address, options.placement, options.restarts, options.watchdog)
    cluster = options.cluster(options.engine, engine_options)
    warning = idle_gpu()
    if warning:
        print(f"fragmenta: {warning}", file=sys.stderr)
    view = None if options.json else TerminalView() if sys.stdout.isatty() else PlainView()

    def start() -> Result:
        return train(
            algorithm,
            env,
            policy=options.policy,
            engine=options.engine,
            seed=options.seed,
            cluster=cluster,
            merge=options.merge,
            run_dir=run_dir,
            deadline=options.deadline,
            watcher=view,
            env_options=options,
            save_options=SaveOptions(options.checkpoint_every, options.keep_last, options.keep_best),
            sinks=parse_sinks(options.sinks),
            seeds=options.seeds,
            evaluation=EvaluationOptions(options.eval_every, options.eval_episodes),
            timeline=options.trace,
            engine_options=engine_options,
        )

    return show(view, run_dir, start, options.trace)


def show(
    view: PlainView | TerminalView | None, run_dir: Path, start: Callable[[], Result], timeline: bool = False
) -> int:
    """Train, and say what came of it: to a person, or as JSON where there is no view."""
    try:
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


def _unused(path: Path) -> Path:
    """The path, or with a number if two runs start in the same second."""
    candidate, count = path, 1
    while candidate.exists():
        count += 1
        candidate = path.with_name(f"{path.name}-{count}")
    return candidate
