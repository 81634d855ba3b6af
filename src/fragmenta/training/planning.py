"""Check and plan a run before anything starts."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.named import algorithm_name
from fragmenta.coordinator.plan import project
from fragmenta.engines import engine_named
from fragmenta.engines.hardware import keep_compiled_programs, setting
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.evaluation.playing import check_drawable
from fragmenta.graph import Graph, Plan
from fragmenta.planner.auto import Decision, Question, decide
from fragmenta.policies import Cluster, Policy, resolve
from fragmenta.runs.opening import SCHEMA, describe_algorithm, params_of
from fragmenta.runs.seeds import with_seeds
from fragmenta.tracing.iteration import steps_per_iteration
from fragmenta.tracing.trace import trace
from fragmenta.training.defaults import default_policy, default_replicas
from fragmenta.training.options import RunOptions
from fragmenta.training.origin import ParentRun
from fragmenta.training.seeds import check_seeds
from fragmenta.version import __version__

AUTO = "auto"
"""The name that leaves the distribution policy to the planner, as no name does."""
DEFAULT_ENGINE = "local"
PolicyChoice = str | Policy | Sequence[str | Policy]
"""A distribution policy, or `auto` with others to compare besides the built-in ones."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks for: an algorithm on an environment, by which distribution policy, engine and seeds."""

    algorithm: Algorithm
    env: Environment
    env_name: str
    env_arguments: dict[str, Any] | None
    """The options that create the environment again; None if only Python code can."""
    policy: PolicyChoice | None
    engine: str | None
    """None to let the planner choose."""
    cluster: Cluster | None
    seed: int
    seeds: int
    options: RunOptions
    origin: ParentRun | None = None
    """The run whose parameters it starts from."""


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A request that can run, with its plan."""

    request: Request
    policy: str | Policy
    cluster: Cluster
    plan: Plan
    steps_per_iteration: int
    """Environment steps per seed; where a learner takes one replica's part at a time, those of one part."""
    why_replicas: str
    """Why there are as many replicas as were chosen; empty if the user chose, or if there is nothing to say."""
    why: str = ""
    """Why the planner chose this plan; empty if the user did."""
    engine_is_open: bool = False
    """Whether the planner chose the engine, too."""
    predicted: float | None = None
    """The steps per second, over all seeds, that a prediction for this plan gives; None if there is none."""

    @functools.cached_property
    def trained(self) -> Algorithm:
        """The algorithm itself, or for several seeds a wrapper that trains it once per seed."""
        request = self.request
        return with_seeds(request.algorithm, request.seed, request.seeds)

    @property
    def engine(self) -> str:
        """The engine, which the user or the planner chose."""
        return self.request.engine or DEFAULT_ENGINE

    def identity(self) -> dict[str, Any]:
        """The entries that `summary.json` and `config.json` share."""
        request = self.request
        return {
            "algorithm": algorithm_name(request.algorithm),
            "env": request.env_name,
            "policy": self.plan.policy,
            "engine": self.engine,
            "replicas": self.cluster.replicas,
            "seed": request.seed,
            "seeds": request.seeds,
        }

    def config(self) -> dict[str, Any]:
        """The contents of `config.json`, from which the run can be resumed."""
        request, options = self.request, self.request.options
        return {
            **self.identity(),
            "merge": options.merge,
            "kernels": options.kernels,
            "devices": self.cluster.devices,
            "lag": self.cluster.lag,
            "max_lag": self.cluster.max_lag,
            "replay": self.cluster.replay,
            "shards": self.cluster.shards,
            "learners": self.cluster.learners,
            "deadline": options.deadline,
            "saving": dataclasses.asdict(options.saving),
            "sinks": options.sinks,
            "tracking": dataclasses.asdict(options.tracking),
            "evaluation": dataclasses.asdict(options.evaluation),
            "engine_options": dataclasses.asdict(options.engine),
            "env_options": request.env_arguments,
            "start_from": request.origin.description if request.origin else None,
            "version": __version__,
            "schema": SCHEMA,
            **describe_algorithm(request.algorithm),
        }


Replan = Callable[[PlannedRun, float], PlannedRun | None]
"""Takes a run that is slower than predicted, and the steps per second that it measures. Returns the same request under
a better plan, with the prediction for that, or None to keep the plan. Called about once a second while the run is too
slow; meanwhile it waits."""


def plan_run(request: Request, decision: Decision | None = None) -> PlannedRun:
    """Check a request and plan it, as was decided already or else as is decided now; ConfigError if it cannot run."""
    algorithm, env, options = request.algorithm, request.env, request.options
    check_run(algorithm, env, request.engine or DEFAULT_ENGINE)
    _check_seed(request.seed)
    params_of(algorithm, env)  # an algorithm of the user's own may not say where they are
    options.check()
    if options.saving.save_replay and not algorithm.rebuildable:
        kind = type(algorithm).__name__
        raise ConfigError(f"save_replay is for algorithms with a replay, which {kind} has not: leave it out")
    if options.evaluation.eval_video:
        check_drawable(env)
    if options.replan and (not is_open(request.policy) or request.seeds != 1):
        why = f"seeds is {request.seeds}" if is_open(request.policy) else f"the policy is {request.policy}"
        raise ConfigError(f"replan changes plans that the planner chose, but {why}: use it with auto and one seed")
    keep_compiled_programs()
    engine = engine_named(request.engine or DEFAULT_ENGINE)
    _check_bound_here(request, engine.apart)
    cluster = request.cluster or engine.cluster(options.engine)
    cluster = dataclasses.replace(cluster, apart=engine.apart)
    trained = with_seeds(algorithm, request.seed, request.seeds)
    graph, why_replicas = functools.cache(lambda: trace(trained, env)), ""
    if decision is None:
        decision, why_replicas = _decision(request, cluster, graph)
    if decision.env_mode and env.host_pool:
        env = env.through(env.host_pool.twin(decision.env_mode))
        graph = functools.cache(lambda: trace(trained, env))
    options = dataclasses.replace(options, merge=decision.merge)
    engine_is_open = request.engine is None
    request = dataclasses.replace(request, engine=decision.engine, env=env, options=options)
    policy, cluster = decision.policy, decision.cluster
    check_seeds(policy, request.seeds, env)
    plan = project(graph(), policy, cluster, options.merge)
    if plan.lags and not algorithm.allows_lag:
        raise ConfigError(
            f"{type(algorithm).__name__} does not declare that it tolerates acting with stale parameters: "
            f"choose a synchronous distribution policy without lag, or set allows_lag = True in it if it does"
        )
    steps = _steps_per_iteration(request, plan)
    whys, predicted = (why_replicas, decision.reason), decision.steps_per_second
    return PlannedRun(request, policy, cluster, plan, steps, *whys, engine_is_open, predicted)


def is_open(policy: PolicyChoice | None) -> bool:
    """Whether the planner chooses the distribution policy."""
    return policy is None or AUTO in policies_in(policy)


def policies_in(policy: PolicyChoice) -> tuple[str | Policy, ...]:
    """The distribution policies that are named: with commas between them, or in a sequence."""
    if isinstance(policy, str):
        names = tuple(name.strip() for name in policy.split(","))
        if not all(names):
            raise ConfigError(f"policy is '{policy}': a name is missing beside a comma")
        return names
    return (policy,) if callable(policy) else tuple(policy)


def user_policies_in(policy: PolicyChoice | None) -> tuple[str | Policy, ...]:
    """Those that are named besides auto."""
    return tuple(one for one in policies_in(policy or AUTO) if one != AUTO)


def _decision(request: Request, cluster: Cluster, graph: Callable[[], Graph]) -> tuple[Decision, str]:
    """How to run: as the user says, and where that is left open as the planner decides; and why so many replicas."""
    if not is_open(request.policy):
        policies = policies_in(request.policy or AUTO)
        if len(policies) != 1:
            names = ", ".join(policy if isinstance(policy, str) else policy.__name__ for policy in policies)
            raise ConfigError(
                f"policy is '{names}': name one distribution policy, or auto and others to compare with it"
            )
        return _default(request, policies[0], cluster)
    if request.seeds != 1:
        if user_policies_in(request.policy):
            raise ConfigError(f"seeds is {request.seeds}, which only fused can train: give auto alone as the policy")
        return _default(request, default_policy(request.env), cluster)
    question, why = open_question(request, cluster, graph())
    decision = decide(question)
    return decision, why if decision.cluster == question.default.cluster else ""


def open_question(request: Request, cluster: Cluster, graph: Graph) -> tuple[Question, str]:
    """What the planner is to decide, where the user leaves the distribution policy open; and why there are so many
    replicas by default."""
    devices, replicas = cluster.devices, cluster.replicas
    if not cluster.apart and devices[0].startswith("cpu:"):
        cluster = dataclasses.replace(cluster, devices=devices[:1])
    default, why = _default(request, default_policy(request.env), cluster)
    user_policies = user_policies_in(request.policy)
    check_comparable(user_policies, graph, dataclasses.replace(default.cluster, devices=devices), request.options.merge)
    question = Question(
        request.algorithm,
        request.env,
        graph,
        default,
        devices,
        request.engine,
        replicas,
        request.options.merge,
        request.options.replan,
        user_policies,
    )
    return question, why


def check_comparable(policies: Sequence[str | Policy], graph: Graph, cluster: Cluster, merge: bool) -> None:
    """ConfigError for distribution policies of the user's that the planner cannot choose: those that cannot place the
    algorithm, or that change the result."""
    for policy in policies:
        resolve(policy)
        plan = project(graph, policy, cluster, merge)
        if plan.lags:
            problem = f"distribution policy '{plan.policy}' acts with older parameters, which changes the result"
            raise ConfigError(f"{problem}: auto never does that; name it alone, as in --policy {plan.policy}")


def _default(request: Request, policy: str | Policy, cluster: Cluster) -> tuple[Decision, str]:
    """How to run under a distribution policy, and why with so many replicas, unless the user says how many."""
    why = ""
    if not cluster.replicas:
        replicas, why = default_replicas(request.algorithm, request.env, policy, cluster)
        cluster = dataclasses.replace(cluster, replicas=replicas)
    return Decision(policy, request.engine or DEFAULT_ENGINE, cluster, merge=request.options.merge), why


def question_of(run: PlannedRun) -> Question:
    """The question of how to go on with a run: on all devices of its engine, with any number of replicas; if its
    environments are in other processes, which keep them, in this one."""
    request, kind = run.request, engine_named(run.engine)
    engine = DEFAULT_ENGINE if kind.apart and request.env.host_pool and run.engine_is_open else run.engine
    whole = engine_named(engine).cluster(request.options.engine)
    default = Decision(run.policy, engine, dataclasses.replace(run.cluster, devices=whole.devices, apart=whole.apart))
    graph, merge = trace(run.trained, request.env), request.options.merge
    what, policies = (request.algorithm, request.env, graph), user_policies_in(request.policy)
    return Question(*what, default, whole.devices, engine, 0, merge, user_policies=policies)


def _steps_per_iteration(request: Request, plan: Plan) -> int:
    """Those of one seed, of one part where the learner takes the parts of replicas one at a time."""
    if request.seeds != 1:
        return steps_per_iteration(request.algorithm, trace(request.algorithm, request.env).steps)
    declared = plan.graph.steps is None
    return steps_per_iteration(request.algorithm, plan.graph.steps) // (plan.arrivals if declared else 1)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed is {seed}: it must be at least 0 and less than 2**63")


def _check_bound_here(request: Request, apart: bool) -> None:
    """An environment that cannot leave this process cannot be stepped, or evaluated meanwhile, by anything else."""
    bound = request.env.host_pool.spec.bound_here if request.env.host_pool else None
    if bound is None:
        return
    cannot = f"'{request.env_name}' cannot be copied ({bound.reason})"
    if apart:
        raise ConfigError(f"{cannot} to the processes of engine '{request.engine}': use engine 'local'")
    if bound.is_single and request.options.evaluation.eval_every:
        raise ConfigError(f"{cannot} and is busy training: leave out eval_every, or give a function that makes it")


def check_run(algorithm: Algorithm, env: Environment, engine: str) -> None:
    """Raise ConfigError for what no distribution policy can run: an unknown engine, a random number generator whose
    output depends on how programs are split, or hyper-parameters that do not fit the environment."""
    engine_named(engine)
    generator = setting("jax_default_prng_impl")
    if generator != "threefry2x32":
        raise ConfigError(
            f"JAX's random numbers come from '{generator}', which depends on how programs are "
            f"split: set jax_default_prng_impl to threefry2x32"
        )
    algorithm.validate(env)
