"""What a run is to do, checked and planned before anything starts."""

import dataclasses

from fragmenta.algorithms import Algorithm
from fragmenta.coordinator.plan import project
from fragmenta.engines import ENGINES, EngineOptions
from fragmenta.engines.hardware import engine_cluster, keep_compiled_programs, setting
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError, unknown
from fragmenta.evaluation.periodic import EvaluationOptions
from fragmenta.graph import Plan
from fragmenta.policies import Cluster, Policy
from fragmenta.runs.saving import SaveOptions
from fragmenta.runs.sinks import check_sinks
from fragmenta.tracing.trace import trace
from fragmenta.training.defaults import default_policy, default_replicas
from fragmenta.training.seeds import many_seeds


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a run is done, apart from the algorithm, the environment and the policy."""

    engine: str
    seed: int
    seeds: int
    merge: bool
    deadline: float
    saving: SaveOptions
    sinks: tuple[str, ...]
    evaluation: EvaluationOptions
    engine_options: EngineOptions
    timeline: bool = False


def plan_run(
    algorithm: Algorithm,
    env: Environment,
    policy: str | Policy | None,
    cluster: Cluster | None,
    settings: Settings,
) -> tuple[str | Policy, Plan, Cluster]:
    """The policy, and what runs where; ConfigError for whatever cannot."""
    check_run(algorithm, env, settings.engine)
    if settings.deadline <= 0:
        raise ConfigError(f"deadline is {settings.deadline}: it must be more than 0 seconds")
    settings.engine_options.check()
    settings.saving.check()
    settings.evaluation.check()
    if settings.seeds != 1 and settings.evaluation.eval_every:
        asked = f"eval_every is {settings.evaluation.eval_every}, but {settings.seeds} seeds are trained at once"
        raise ConfigError(f"{asked}: leave one of the two out")
    check_sinks(settings.sinks)
    keep_compiled_programs()
    cluster = cluster or engine_cluster(settings.engine, settings.engine_options)
    cluster = dataclasses.replace(cluster, apart=settings.engine != "local")
    policy = policy or default_policy(env)
    if cluster.replicas == 0:
        replicas = default_replicas(algorithm, env, policy, cluster.apart)
        cluster = dataclasses.replace(cluster, replicas=replicas)
    plan = project(trace(trained_algorithm(algorithm, policy, settings), env), policy, cluster, settings.merge)
    if plan.lags and not algorithm.allows_lag:
        raise ConfigError(
            f"{type(algorithm).__name__} does not say that it may act with parameters older than those it learns: "
            f"choose a synchronous policy without lag, or set allows_lag = True in it if it bears that"
        )
    return policy, plan, cluster


def trained_algorithm(algorithm: Algorithm, policy: str | Policy, settings: Settings) -> Algorithm:
    """The algorithm itself, or for several seeds the one that trains it once for each."""
    return algorithm if settings.seeds == 1 else many_seeds(algorithm, policy, settings.seed, settings.seeds)


def check_run(algorithm: Algorithm, env: Environment, engine: str) -> None:
    """Refuse what no policy could run: an engine that there is not, random numbers that depend on the split, or
    hyper-parameters that do not fit the environment."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    generator = setting("jax_default_prng_impl")
    if generator != "threefry2x32":
        raise ConfigError(
            f"JAX's random numbers come from '{generator}', which depends on how programs are "
            f"split: set jax_default_prng_impl to threefry2x32"
        )
    algorithm.validate(env)
