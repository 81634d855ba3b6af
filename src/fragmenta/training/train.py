"""Train an algorithm on an environment: trace, plan, compile, run, keep."""

import dataclasses
import time
from pathlib import Path
from typing import Any, Protocol

import jax

import fragmenta
from fragmenta.algorithms import Algorithm
from fragmenta.coordinator.plan import project
from fragmenta.coordinator.trace import trace
from fragmenta.engines import ENGINES
from fragmenta.envs import Environment, EnvOptions, HostEnvironment, make
from fragmenta.errors import ConfigError, unknown
from fragmenta.graph import Plan
from fragmenta.graph.show import to_mermaid
from fragmenta.policies import Cluster, Policy
from fragmenta.training.defaults import default_policy, default_replicas
from fragmenta.training.episodes import RecentEpisodes, as_record
from fragmenta.training.hardware import keep_compiled_programs, local_cluster, setting
from fragmenta.training.run_directory import RunDirectory, sha256
from fragmenta.training.runs import SCHEMA, algorithm_name, describe_algorithm, describe_environment


@dataclasses.dataclass(frozen=True)
class Result:
    """What training gives back: parameters, the whole state, one record per iteration, and the summary."""

    params: Any
    state: Any
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a run is."""

    iteration: int
    iterations: int
    steps: int
    steps_per_second: float
    return_mean: float | None
    lag: int | None
    """Versions between the parameters that acted and those that learned, where they may differ."""
    busy: dict[str, float]
    """Per fragment, the share of time that it computed."""


class Watcher(Protocol):
    """Sees a run as it goes; the terminal view is one."""

    def planned(self, plan: Plan, algorithm: Algorithm, environments: str) -> None:
        """Before anything is compiled; `environments` says in words what they are and where they run."""
        ...

    def compiled(self, seconds: float) -> None:
        """Before the first iteration."""
        ...

    def progressed(self, progress: Progress) -> None:
        """After every iteration."""
        ...


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
) -> Result:
    """Train, and return the parameters, the state, the metrics and a summary.

    `policy` decides what runs where, and unless it is asynchronous never changes the result; by default it is `fused`,
    or `single_learner_coarse` for environments on the host. `cluster` names the devices and the replicas (all of this
    machine's and one or two, by default), and how far parts may drift. `deadline` is how long, in seconds, one part
    waits for another.
    """
    started = time.monotonic()
    if total_steps is not None:
        algorithm = dataclasses.replace(algorithm, total_steps=total_steps)
    environment = make(env, env_options)
    env_name, options = describe_environment(env, environment, env_options)
    _validate(algorithm, environment, engine, deadline)
    keep_compiled_programs()
    cluster = cluster or local_cluster(replicas=0)
    policy = policy or default_policy(environment)
    if cluster.replicas == 0:
        cluster = dataclasses.replace(cluster, replicas=default_replicas(algorithm, environment, policy))
    plan = project(trace(algorithm, environment), policy, cluster, merge)
    if plan.lags and not algorithm.allows_lag:
        raise ConfigError(
            f"{type(algorithm).__name__} does not say that it may act with parameters older than those it learns: "
            f"choose a synchronous policy without lag, or set allows_lag = True in it if it bears that"
        )
    directory = RunDirectory(Path(run_dir)) if run_dir is not None else None
    # Replicas that run as one step all environments at once.
    parts = next((p.replicas for p in plan.programs if set(p.fragment.stages) & set(plan.graph.host_stages)), 1)
    if watcher:
        where = f"{algorithm.num_envs} of {env_name}, {environment.where(algorithm.num_envs, parts)}"
        watcher.planned(plan, algorithm, where)
    identity = {
        "algorithm": algorithm_name(algorithm),
        "env": env_name,
        "policy": plan.policy,
        "engine": engine,
        "replicas": cluster.replicas,
        "seed": seed,
    }
    if directory:
        settings = {
            "merge": merge,
            "devices": cluster.devices,
            "lag": cluster.lag,
            "max_lag": cluster.max_lag,
            "deadline": deadline,
            "env_options": options,
            "version": fragmenta.__version__,
            "schema": SCHEMA,
        }
        directory.write_json("config.json", {**identity, **settings, **describe_algorithm(algorithm)})
        directory.write_text("graph.mmd", to_mermaid(plan))
    try:
        with environment.opened(parts):
            return _run(algorithm, environment, plan, identity, directory, watcher, deadline, started)
    finally:
        if directory:
            directory.close()


def _run(
    algorithm: Algorithm,
    env: Environment,
    plan: Plan,
    identity: dict[str, Any],
    directory: RunDirectory | None,
    watcher: Watcher | None,
    deadline: float,
    started: float,
) -> Result:
    # Where a learner takes one replica's part at a time, an iteration is one part.
    steps_each = algorithm.steps_per_iteration // plan.arrivals
    iterations = -(-algorithm.total_steps // steps_each)
    lags: list[int] = []
    dropped = 0
    compiling = time.monotonic()
    initial = jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(identity["seed"]))
    leaves, structure = jax.tree.flatten(initial)
    records: list[dict[str, Any]] = []
    recent = RecentEpisodes()
    with ENGINES[identity["engine"]](plan, leaves, deadline) as engine:
        compile_seconds = time.monotonic() - compiling
        if watcher:
            watcher.compiled(compile_seconds)
        running = time.monotonic()
        for report in engine.run(iterations):
            values = jax.device_get(report.metrics)
            metrics = {name: values[i] for i, name in enumerate(plan.graph.metric_names)}
            if "episodes" in metrics and "returns" in metrics:
                recent.add(int(metrics["episodes"]), float(metrics["returns"]))
            steps = (report.iteration + 1) * steps_each
            seconds = time.monotonic() - running
            record = {"iteration": report.iteration, "steps": steps, "seconds": round(seconds, 6), **as_record(metrics)}
            if report.lag is not None:
                lags.append(report.lag)
                dropped += report.dropped
                record |= {"lag": report.lag}
            if report.source is not None:
                record |= {"source": report.source, "dropped": dropped}
            records.append(record)
            if directory:
                directory.add_metrics(records[-1])
            if watcher:
                rate = steps / seconds
                watcher.progressed(
                    Progress(report.iteration + 1, iterations, steps, rate, recent.return_mean, report.lag, report.busy)
                )
        state = jax.tree.unflatten(structure, engine.state())
        jax.block_until_ready(state)
        seconds = time.monotonic() - running
    params = algorithm.params(state)
    steps = iterations * steps_each
    summary = {
        **identity,
        "total_steps": steps,
        "iterations": iterations,
        "steps_per_second": round(steps / seconds, 1),
        "compile_seconds": round(compile_seconds, 3),
        "wall_seconds": round(time.monotonic() - started, 3),
        "return_mean": recent.return_mean,
        "params_sha256": sha256(params),
    }
    if isinstance(env, HostEnvironment) and env.pool.restarted:
        summary["env_restarts"] = env.pool.restarted
    if lags:
        summary |= {"lag_mean": round(sum(lags) / len(lags), 3), "lag_max": max(lags), "dropped": dropped}
    if directory:
        directory.write_params(params)
        directory.write_json("summary.json", summary)
    return Result(params, state, records, summary)


def _validate(algorithm: Algorithm, env: Environment, engine: str, deadline: float) -> None:
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if deadline <= 0:
        raise ConfigError(f"deadline is {deadline}: it must be more than 0 seconds")
    generator = setting("jax_default_prng_impl")
    if generator != "threefry2x32":
        raise ConfigError(
            f"JAX's random numbers come from '{generator}', which depends on how programs are "
            f"split: set jax_default_prng_impl to threefry2x32"
        )
    algorithm.validate(env)
