"""Train an algorithm on an environment: trace, plan, compile, run, keep."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.named import algorithm_name
from fragmenta.engines import EngineOptions, Setup
from fragmenta.engines.hardware import engine_cluster
from fragmenta.engines.in_flight import fits
from fragmenta.envs import Environment, EnvOptions, HostEnvironment, make
from fragmenta.errors import ConfigError
from fragmenta.evaluation.periodic import EvaluationOptions, PeriodicEvaluation
from fragmenta.graph import Plan
from fragmenta.graph.show import to_mermaid
from fragmenta.pictures.curve import draw_curve
from fragmenta.policies import Cluster, Policy
from fragmenta.runs.checkpoints import CHECKPOINTS, Checkpoint, CheckpointFolder
from fragmenta.runs.metrics import MetricsLog
from fragmenta.runs.opening import (
    SCHEMA,
    cluster_of,
    describe_algorithm,
    describe_environment,
    open_run,
)
from fragmenta.runs.run_directory import RunDirectory
from fragmenta.runs.saving import SaveOptions, Saver
from fragmenta.runs.state import from_arrays
from fragmenta.training.loop import Job, Result, Start, Watcher, run_job
from fragmenta.training.planning import Settings, plan_run, trained_algorithm
from fragmenta.training.seeds import Seeds, write_seeds
from fragmenta.training.stopping import Stop, stopped_by_signals
from fragmenta.version import __version__


def train(
    algorithm: Algorithm,
    env: str | Environment,
    policy: str | Policy | None = None,
    engine: str = "local",
    total_steps: int | None = None,
    seed: int = 0,
    cluster: Cluster | None = None,
    merge: bool = True,
    run_dir: str | Path | None = None,
    deadline: float = 300.0,
    watcher: Watcher | None = None,
    env_options: EnvOptions | None = None,
    save_options: SaveOptions | None = None,
    sinks: Sequence[str] = ("tensorboard",),
    seeds: int = 1,
    timeline: bool = False,
    evaluation: EvaluationOptions | None = None,
    engine_options: EngineOptions | None = None,
) -> Result:
    """Train, and return the parameters, the state, the metrics and a summary.

    `policy` decides what runs where, and unless it is asynchronous never changes the result; by default it is `fused`,
    or `single_learner_coarse` for environments on the host. `engine` is `local`, `processes` or `ray`. `cluster` names
    the devices and the replicas (all of this machine's and one or two, by default), and how far parts may drift.
    `deadline` is how long, in seconds, one part waits for another, or a process may take to compile. With `run_dir`,
    the run is saved as it goes, Ctrl-C ends it so that `resume` goes on, and metrics go there and to the `sinks`:
    tensorboard, wandb, mlflow. `seeds` trains so many seeds, from `seed` on, as one program; parameters and state then
    have the seeds first. `timeline` records some iterations and leaves `trace.pftrace` and `timings.json`. `evaluation`
    says when to evaluate meanwhile, which changes no result.
    """
    if total_steps is not None:
        algorithm = dataclasses.replace(algorithm, total_steps=total_steps)
    environment = make(env, env_options)
    named = describe_environment(env, environment, env_options)
    saving, evaluating = save_options or SaveOptions(), evaluation or EvaluationOptions()
    written = tuple(sinks) if run_dir is not None else ()
    how = saving, written, evaluating, engine_options or EngineOptions(), timeline
    settings = Settings(engine, seed, seeds, merge, deadline, *how)
    if run_dir is None and (timeline or evaluating.eval_every):
        what = "timeline" if timeline else "evaluation"
        raise ConfigError(f"there is nowhere to write what {what} asks for: give a run_dir")
    policy, plan, cluster = plan_run(algorithm, environment, policy, cluster, settings)
    directory = RunDirectory.new(Path(run_dir)) if run_dir is not None else None
    return _start(algorithm, environment, named, policy, plan, cluster, settings, directory, watcher, None)


def resume(
    run_dir: str | Path,
    policy: str | Policy | None = None,
    cluster: Cluster | None = None,
    total_steps: int | None = None,
    algorithm: Algorithm | None = None,
    env: str | Environment | None = None,
    watcher: Watcher | None = None,
    engine: str | None = None,
    engine_options: EngineOptions | None = None,
) -> Result:
    """Go on with a run from its latest checkpoint, under the same policy and engine or others, in the same directory.

    `algorithm` and `env` are for those that only Python can make; `total_steps` lets a run go further than it was to.
    """
    run = open_run(run_dir, algorithm, env)
    config = run.config
    resumed = run.algorithm
    if total_steps is not None:
        resumed = dataclasses.replace(resumed, total_steps=total_steps)
    checkpoint = CheckpointFolder(run.path / CHECKPOINTS).newest()
    if checkpoint.steps >= resumed.total_steps:
        done = f"'{run.path}' has done its {checkpoint.steps:,} steps"
        raise ConfigError(f"{done}: say how many it is to do in all, as in --total-steps {2 * checkpoint.steps}")
    options = engine_options or EngineOptions(**config["engine_options"])
    if cluster is None and not policy and engine in (None, config["engine"]):
        cluster = cluster_of(run)
    chosen = engine or config["engine"]
    cluster = cluster or engine_cluster(chosen, options, lag=config["lag"], max_lag=config["max_lag"])
    settings = Settings(
        chosen,
        config["seed"],
        config["seeds"],
        config["merge"],
        config["deadline"],
        SaveOptions(**config["saving"]),
        tuple(config["sinks"]),
        EvaluationOptions(**config["evaluation"]),
        options,
    )
    named = config["env"], config["env_options"]
    policy, plan, cluster = plan_run(resumed, run.env, policy or config["policy"], cluster, settings)
    directory = RunDirectory.reopened(run.path, checkpoint.iteration)
    return _start(resumed, run.env, named, policy, plan, cluster, settings, directory, watcher, checkpoint)


def _start(
    algorithm: Algorithm,
    env: Environment,
    named: tuple[str, dict[str, Any] | None],
    policy: str | Policy,
    plan: Plan,
    cluster: Cluster,
    settings: Settings,
    directory: RunDirectory | None,
    watcher: Watcher | None,
    checkpoint: Checkpoint | None,
) -> Result:
    started = time.monotonic()
    if watcher:
        host = cluster.apart and isinstance(env, HostEnvironment)
        how = "on the host, in the processes that step them" if host else env.where(algorithm.num_envs, plan.lanes)
        where = f"{algorithm.num_envs} of {named[0]}, {how}"
        watcher.planned(plan, algorithm, where + _resumed(env, plan, checkpoint))
    identity = {
        "algorithm": algorithm_name(algorithm),
        "env": named[0],
        "policy": plan.policy,
        "engine": settings.engine,
        "replicas": cluster.replicas,
        "seed": settings.seed,
        "seeds": settings.seeds,
    }
    config = {
        **identity,
        "merge": settings.merge,
        "devices": cluster.devices,
        "lag": cluster.lag,
        "max_lag": cluster.max_lag,
        "deadline": settings.deadline,
        "saving": dataclasses.asdict(settings.saving),
        "sinks": settings.sinks,
        "evaluation": dataclasses.asdict(settings.evaluation),
        "engine_options": dataclasses.asdict(settings.engine_options),
        "env_options": named[1],
        "version": __version__,
        "schema": SCHEMA,
        **describe_algorithm(algorithm),
    }
    trained = trained_algorithm(algorithm, plan.policy, settings)
    with contextlib.ExitStack() as ending:
        stop, saver, metrics, evaluation = Stop(), None, None, None
        if directory:
            directory.write_json("config.json", config)
            directory.write_text("graph.mmd", to_mermaid(plan))
            stop = ending.enter_context(stopped_by_signals())
            metrics = ending.enter_context(MetricsLog(directory.path, settings.sinks, config))
            saver = ending.enter_context(Saver(directory.path / CHECKPOINTS, settings.saving, metrics.flush))
            if settings.evaluation.eval_every:
                evaluation = PeriodicEvaluation(directory.path, settings.evaluation, trained, env, settings.seed)
                ending.enter_context(evaluation)
        setup = Setup(plan, trained, env, policy, cluster, settings.merge, settings.seed, settings.deadline)
        setup = dataclasses.replace(setup, options=settings.engine_options, logs=_logs(directory, settings.engine))
        kept = directory, metrics, saver, evaluation, watcher, stop
        job = Job(setup, identity, started, settings.timeline, *kept)
        begin = functools.partial(_begin, trained, plan, settings.seed, directory, checkpoint)
        result = run_job(job, checkpoint.steps if checkpoint else 0, begin)
    if directory:
        if isinstance(trained, Seeds):
            records = [*directory.earlier, *result.metrics]
            write_seeds(directory.path, config, records, result.params, result.summary)
        else:
            directory.write_params(result.params)
        directory.write_json("summary.json", result.summary)  # it says that a run is whole, so it comes last
        draw_curve(directory.path)
    return result


def _logs(directory: RunDirectory | None, engine: str) -> Path | None:
    """Where processes of the engine leave what they print."""
    if directory is None or engine == "local":
        return None
    logs = directory.path / "logs"
    logs.mkdir(exist_ok=True)
    return logs


def _begin(
    algorithm: Algorithm,
    plan: Plan,
    seed: int,
    directory: RunDirectory | None,
    checkpoint: Checkpoint | None,
    env: Environment,
) -> Start:
    init, key = jax.jit(lambda key: algorithm.init(env, key)), jax.random.key(seed)
    if checkpoint is None or directory is None:
        return Start(init(key))
    saved = from_arrays(jax.eval_shape(init, key), checkpoint.arrays, f"the checkpoint of '{directory.path}'")
    if isinstance(env, HostEnvironment):
        # Other seeds than at the beginning: the same episodes again would count twice.
        saved = algorithm.with_new_episodes(saved, init(jax.random.fold_in(key, checkpoint.iteration)))
    in_flight = checkpoint.in_flight if fits(plan, checkpoint.in_flight) else {}
    return Start(saved, checkpoint.iteration, checkpoint.steps, directory.earlier, in_flight)


def _resumed(env: Environment, plan: Plan, checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return ""
    anew = ", which start new episodes because their state cannot be saved" if isinstance(env, HostEnvironment) else ""
    dropped = checkpoint.in_flight and not fits(plan, checkpoint.in_flight)
    without = ", without the values that were on their way: nothing here takes them" if dropped else ""
    return f"{anew}; resumed after {checkpoint.steps:,} steps{without}"
