"""Train an algorithm on an environment: trace, plan, compile, run, save."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.named import AlgorithmLike, algorithm_from
from fragmenta.engines import EngineOptions, engine_named
from fragmenta.engines.in_flight import fits
from fragmenta.engines.in_place import in_place
from fragmenta.envs import make
from fragmenta.envs.objects import fixed_count
from fragmenta.errors import ConfigError
from fragmenta.evaluation.periodic import EvaluationOptions
from fragmenta.pictures.curve import draw_curve
from fragmenta.policies import Cluster, Policy
from fragmenta.progress.choosing import view_for
from fragmenta.progress.watching import Watcher
from fragmenta.runs.checkpoints import CHECKPOINTS, Checkpoint, CheckpointFolder
from fragmenta.runs.history import recorded
from fragmenta.runs.lock import locked
from fragmenta.runs.opening import Run, cluster_of, describe_environment, load, replay_settings
from fragmenta.runs.run_directory import RunDirectory, read_config
from fragmenta.runs.saving import SaveOptions
from fragmenta.runs.seeds import Seeds
from fragmenta.runs.sinks import TrackingOptions
from fragmenta.training.callbacks import Callbacks
from fragmenta.training.loop import run_loop
from fragmenta.training.options import RunOptions
from fragmenta.training.origin import ParentRun, origin_of
from fragmenta.training.planning import PlannedRun, PolicyChoice, Replan, Request, plan_run
from fragmenta.training.prepared import PreparedRun
from fragmenta.training.rechoosing import Rechoosing
from fragmenta.training.result import Result
from fragmenta.training.seeds import write_seeds
from fragmenta.training.services import services
from fragmenta.training.start import Start, resumption
from fragmenta.training.stepping import settled
from fragmenta.training.stopping import StoppedError
from fragmenta.worker.backends.kernel import use_kernels

STOPPED = (StoppedError, KeyboardInterrupt)


def train(
    algorithm: AlgorithmLike,
    env: Any,
    policy: PolicyChoice | None = None,
    engine: str | None = None,
    total_steps: int | None = None,
    seed: int = 0,
    cluster: Cluster | None = None,
    seeds: int = 1,
    run_dir: str | Path | None = None,
    watcher: Watcher | None = None,
    options: RunOptions | None = None,
    progress: bool = True,
    callbacks: Sequence[Any] = (),
    stop_at_return: float | None = None,
    start_from: str | Path | Run | None = None,
    **hyper_parameters: Any,
) -> Result:
    """Train, and return the parameters, the state, the metrics and a summary.

    `algorithm` is a name as on the command line, a class or an instance; hyper-parameters are given by keyword, as in
    `train("ppo", "CartPole-v1", learning_rate=3e-4)`. `env` is a name, a `fragmenta.Environment`, a `gymnasium.Env`,
    its class, a function that makes one, or a `VectorEnv`, whose number of environments is then `num_envs`.
    `policy` is the distribution policy, which decides what runs where; only an asynchronous one changes the result.
    `engine` is `local`, `processes` or `ray`. By default, the planner chooses both. `cluster` sets the devices
    (default: all of this machine), the replicas (default: chosen, too) and the allowed lag. `seeds` trains that many
    seeds, starting at `seed`, as one program; the seed is then the leading dimension of parameters and state.
    With `run_dir`, the run writes metrics and checkpoints there, and Ctrl-C ends it so that `resume` can continue it.
    `options` has everything else: environments, engine, checkpoints, evaluation, sinks, timeline.

    The progress is shown on standard error, or as a curve in a notebook, unless `progress` is False or a `watcher`
    gets it. `callbacks` are objects with `on_iteration`, `on_evaluation` or `on_checkpoint`, which take a `Moment`.
    `stop_at_return` ends the run once the mean return of the latest 100 episodes reaches it. `start_from` is the run
    whose parameters to start with: its directory, or what `load` returns, for example for a checkpoint.
    """
    options = options or RunOptions()
    use_kernels(options.kernels == "on")
    options.tracking.check(options.sinks)
    if total_steps is not None:
        hyper_parameters["total_steps"] = total_steps
    if run_dir is None:
        if options.timeline or options.evaluation.eval_every:
            what = "timeline" if options.timeline else "evaluation"
            raise ConfigError(f"{what} needs a directory to write to: give a run_dir")
        options = dataclasses.replace(options, sinks=())
    environment = make(env, options.env)
    name, arguments = describe_environment(env, environment, options.env)
    trained = _with_count(algorithm, hyper_parameters, fixed_count(env, environment))
    user_callbacks = Callbacks(callbacks, stop_at_return, _events(run_dir is not None, options.evaluation))
    run = plan_run(
        Request(trained, environment, name, arguments, policy, engine, cluster, seed, seeds, options),
    )
    details = {}
    if start_from is not None:
        origin = origin_of(start_from, trained, environment)
        run = dataclasses.replace(run, request=dataclasses.replace(run.request, origin=origin))
        details["start_from"] = origin.description
    replan = Rechoosing() if options.replan else None
    if run_dir is None:
        return _show(run, None, None, user_callbacks, watcher, progress, replan)
    directory = RunDirectory.new(Path(run_dir))
    with locked(directory.path), recorded(directory.path, 0, STOPPED, **details):
        return _show(run, directory, None, user_callbacks, watcher, progress, replan)


def resume(
    run_dir: str | Path,
    policy: str | Policy | None = None,
    cluster: Cluster | None = None,
    total_steps: int | None = None,
    algorithm: Algorithm | None = None,
    env: Any = None,
    watcher: Watcher | None = None,
    engine: str | None = None,
    engine_options: EngineOptions | None = None,
    checkpoint: str | int = "last",
    progress: bool = True,
    callbacks: Sequence[Any] = (),
    stop_at_return: float | None = None,
) -> Result:
    """Continue a run from its latest checkpoint, under the same or another distribution policy and engine.

    Pass `algorithm` and `env` if only Python code can create them; a larger `total_steps` extends the run. From another
    checkpoint (`best`, or an iteration), everything after it is discarded. Progress, callbacks and a return to stop at
    are as in `train`; they are not kept from the earlier run.
    """
    opened = load(run_dir, algorithm, env)
    config, resumed = opened.config, opened.algorithm
    if total_steps is not None:
        resumed = dataclasses.replace(resumed, total_steps=total_steps)
    with locked(opened.path):
        folder = CheckpointFolder(opened.path / CHECKPOINTS)
        began = folder.chosen(str(checkpoint))
        if began.steps >= resumed.total_steps:
            done = f"'{opened.path}' has completed its {began.steps:,} steps"
            raise ConfigError(f"{done}: give a larger total, as in --total-steps {2 * began.steps}")
        options = RunOptions(
            engine=engine_options or EngineOptions(**config["engine_options"]),
            saving=SaveOptions(**config["saving"]),
            evaluation=EvaluationOptions(**config["evaluation"]),
            sinks=tuple(config["sinks"]),
            tracking=TrackingOptions.of(config),
            merge=config["merge"],
            deadline=config["deadline"],
            kernels=config.get("kernels", "off"),
        )
        use_kernels(options.kernels == "on")
        if cluster is None and not policy and engine in (None, config["engine"]):
            cluster = cluster_of(opened)
        chosen = engine or str(config["engine"])
        if cluster is None:
            cluster = engine_named(chosen).cluster(options.engine, lag=config["lag"], max_lag=config["max_lag"])
            if not policy:  # another distribution policy may have no shards
                replay, shards, learners = replay_settings(config)
                cluster = dataclasses.replace(cluster, replay=replay, shards=shards, learners=learners)
        environment = opened.env, config["env"], config["env_options"]
        seeds = config["seed"], config["seeds"]
        origin = ParentRun(config["start_from"]) if config.get("start_from") else None
        placed = policy or config["policy"], chosen, cluster
        run = plan_run(Request(resumed, *environment, *placed, *seeds, options, origin))
        user_callbacks = Callbacks(callbacks, stop_at_return, _events(True, options.evaluation))
        directory = RunDirectory.reopened(opened.path, began.iteration)
        if checkpoint != "last":
            folder.discard_after(began.iteration)
        with recorded(opened.path, began.steps, STOPPED):
            return _show(run, directory, began, user_callbacks, watcher, progress)


def _events(has_directory: bool, evaluation: EvaluationOptions) -> tuple[str, ...]:
    """The methods of callbacks that this run calls."""
    about_files = ("on_checkpoint", *(("on_evaluation",) if evaluation.eval_every else ()))
    return ("on_iteration", *(about_files if has_directory else ()))


def _with_count(algorithm: AlgorithmLike, hyper_parameters: dict[str, Any], count: int | None) -> Algorithm:
    """The algorithm, with as many environments as `env` has if that is a fixed number."""
    if count is not None and not isinstance(algorithm, Algorithm):
        hyper_parameters.setdefault("num_envs", count)
    chosen = algorithm_from(algorithm, hyper_parameters)
    if count is not None and chosen.num_envs != count:
        kind = "one environment that cannot be copied" if count == 1 else f"a vector of {count} environments"
        raise ConfigError(f"num_envs is {chosen.num_envs}, but env is {kind}: use num_envs={count}")
    return chosen


def _show(
    run: PlannedRun,
    directory: RunDirectory | None,
    checkpoint: Checkpoint | None,
    callbacks: Callbacks,
    watcher: Watcher | None,
    progress: bool,
    replan: Replan | None = None,
) -> Result:
    """Train, and show the progress unless a watcher does, or `progress` is False."""
    if watcher or not progress:
        return _start(run, directory, checkpoint, callbacks, watcher, replan)
    view = view_for(sys.stderr)
    with contextlib.closing(view):
        result = _start(run, directory, checkpoint, callbacks, view, replan)
    view.finished(result.summary, directory.path if directory else None)
    return result


def _start(
    run: PlannedRun,
    directory: RunDirectory | None,
    checkpoint: Checkpoint | None,
    callbacks: Callbacks,
    watcher: Watcher | None,
    replan: Replan | None,
) -> Result:
    started, request = time.monotonic(), run.request
    with settled(run) as environments:
        if watcher:
            steps = run.steps_per_iteration * run.plan.arrivals
            environments += _began(run, checkpoint)
            if run.why:
                watcher.remarked(f"plan: {run.why}")
            watcher.planned(run.plan, request.algorithm, steps, environments)
        with services(run, directory) as background:
            prepared = PreparedRun(run, started, directory, *background, watcher, callbacks, replan)
            result = run_loop(prepared, _start_of(run, directory, checkpoint))
    if directory:
        _write_results(directory, result)
    return result


def _write_results(directory: RunDirectory, result: Result) -> None:
    if isinstance(result.algorithm, Seeds):
        records = [*directory.earlier, *result.metrics]
        write_seeds(directory.path, read_config(directory.path), records, result.params, result.summary)
    else:
        directory.write_params(result.params)
    directory.write_json("summary.json", result.summary)  # marks the run as complete, so it comes last
    draw_curve(directory.path)


def _start_of(run: PlannedRun, directory: RunDirectory | None, checkpoint: Checkpoint | None) -> Start:
    algorithm, seed, origin = run.trained, run.request.seed, run.request.origin
    unsaved = () if run.request.options.saving.save_replay else algorithm.rebuildable
    replay = {"unsaved": unsaved, "replay": run.cluster.replay, "in_place": in_place(run.plan.graph)}
    if checkpoint is None or directory is None:
        return Start(algorithm, seed, params=origin.params if origin else None, **replay)
    if not fits(run.plan, checkpoint.in_flight):
        checkpoint = dataclasses.replace(checkpoint, in_flight={})
    source = f"the checkpoint of '{directory.path}'"
    replay["resumption"] = resumption(algorithm, checkpoint)
    return Start(algorithm, seed, checkpoint, source, directory.earlier, **replay)


def _began(run: PlannedRun, checkpoint: Checkpoint | None) -> str:
    """What a run starts from, and what its algorithm says about that."""
    remark = f"; {run.request.algorithm.remark}" if run.request.algorithm.remark else ""
    if checkpoint is None:
        return (f"; {run.request.origin}" if run.request.origin else "") + remark
    replayable = run.request.env.is_replayable
    new_episodes = "" if replayable else ", which start new episodes because their state cannot be saved"
    dropped = checkpoint.in_flight and not fits(run.plan, checkpoint.in_flight)
    without = ", without the values in flight: this plan does not use them" if dropped else ""
    refills = "fills anew, because it was not saved (--save-replay saves it)"
    texts = {"continues": "continues where it was", "refills": refills}
    rebuilt = "".join(f"; its {field} {texts[how]}" for field, how in resumption(run.trained, checkpoint).items())
    return f"{new_episodes}; resumed after {checkpoint.steps:,} steps{without}{rebuilt}{remark}"
