"""Verify that a loop computes the same under distribution policies as in one program: run both and compare."""

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import jax

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.named import AlgorithmLike, algorithm_from
from fragmenta.checks.differences import Difference, Snapshot, gap, rounding
from fragmenta.command import command
from fragmenta.coordinator.plan import informed, project
from fragmenta.engines import ENGINES, EngineOptions, Setup, engine_named
from fragmenta.engines.hardware import ensure_cpu_devices, keep_compiled_programs
from fragmenta.envs import Environment, EnvOptions, make
from fragmenta.errors import ConfigError
from fragmenta.graph import Graph, Plan
from fragmenta.policies import POLICIES, Cluster, Policy, resolve
from fragmenta.runs.state import to_arrays
from fragmenta.tracing.iteration import iteration
from fragmenta.tracing.trace import trace
from fragmenta.training.planning import check_run

REPLICAS = (2, 4)
"""Default numbers of replicas to verify distribution policies with."""
GREW = 10.0
"""Report growing rounding errors if they grow by more than this factor."""
ASYNCHRONOUS = "its fragments do not wait for each other, so the result depends on timing: nothing to compare"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One distribution policy with one number of replicas, compared with the plain program."""

    policy: str
    replicas: int
    refused: str = ""
    """Why it cannot be compared; nothing was run in that case."""
    bitwise: bool = False
    """Whether every bit is equal."""
    largest: tuple[float, ...] = ()
    """The largest difference before the first iteration and after each, relative to the largest entry of its leaf."""
    difference: Difference | None = None
    """The first leaf that differs by more than rounding, if one does."""

    def __str__(self) -> str:
        if self.refused:
            return f"refused: {self.refused}"
        if self.bitwise:
            return "equal bitwise"
        if self.difference is None:
            return f"equal within {max(self.largest):.1e}{self._growth('')}"
        return f"differs in {self.difference}{self._growth(', so it may be rounding amplified by training')}"

    def _growth(self, conclusion: str) -> str:
        first = next((i for i, distance in enumerate(self.largest) if distance > 0), 0)
        if not max(self.largest) > GREW * self.largest[first]:
            return ""
        return f" (it was {self.largest[first]:.1e} after iteration {first}{conclusion})"


@dataclasses.dataclass(frozen=True)
class Verification:
    """The comparisons of all distribution policies that were verified."""

    comparisons: tuple[Comparison, ...]

    @property
    def equal(self) -> bool:
        """Whether every distribution policy that could be compared gives the result of the plain program."""
        return self.first_difference is None

    @property
    def largest_difference(self) -> float:
        """Relative to the largest entry of its leaf; infinite if values differ that must be identical."""
        return max((max(comparison.largest) for comparison in self.comparisons if comparison.largest), default=0.0)

    @property
    def first_difference(self) -> Difference | None:
        """The difference (leaf and entry) of the first distribution policy that differs."""
        return next((comparison.difference for comparison in self.comparisons if comparison.difference), None)

    def __str__(self) -> str:
        return "\n".join(f"{comparison.policy} x{comparison.replicas}: {comparison}" for comparison in self.comparisons)


def verify(
    algorithm: AlgorithmLike,
    env: Any,
    policy: str | Policy | Sequence[str | Policy] | None = None,
    replicas: int | Sequence[int] | None = None,
    engine: str = "local",
    iterations: int = 3,
    seed: int = 0,
    env_options: EnvOptions | None = None,
    shards: int = 0,
    learners: int = 1,
) -> Verification:
    """Run a few iterations as `jax.jit(iterate)` and under distribution policies; compare the state and all metrics.

    `policy` defaults to all synchronous distribution policies that can place the algorithm, `replicas` to two and four.
    `shards` (as many as replicas, if 0) and `learners` are those of the distribution policy `replay`. Integers,
    booleans and keys must be identical, floats equal within 1e-5.
    """
    policies = None if policy is None else [policy] if isinstance(policy, str) or callable(policy) else list(policy)
    counts = None if replicas is None else [replicas] if isinstance(replicas, int) else list(replicas)
    settings = engine, iterations, seed, env_options, shards, learners
    results = comparisons(algorithm_from(algorithm, {}), env, policies, counts, *settings)
    return Verification(tuple(results))


def comparisons(
    algorithm: Algorithm,
    env: Any,
    policies: Sequence[str | Policy] | None,
    replicas: Sequence[int] | None,
    engine: str,
    iterations: int,
    seed: int,
    env_options: EnvOptions | None = None,
    shards: int = 0,
    learners: int = 1,
) -> Iterator[Comparison]:
    """Like `verify`, as an iterator. ConfigError if a distribution policy requested by name cannot be compared."""
    if iterations < 1:
        raise ConfigError(f"iterations is {iterations}: it must be at least 1")
    if invalid := [count for count in replicas or () if count < 1]:
        raise ConfigError(f"replicas is {invalid[0]}: it must be at least 1")
    counts = replicas or [count for count in REPLICAS if algorithm.num_envs % count == 0] or [1]
    if not engine_named(engine).apart:
        ensure_cpu_devices(devices_for(counts, shards, learners))  # before the first array, which fixes their number
    environment = make(env, env_options)
    check_run(algorithm, environment, engine)
    keep_compiled_programs()
    graph = trace(algorithm, environment)
    expected = _plain(algorithm, environment, graph, iterations, seed)
    compared = False
    for policy in policies or POLICIES:
        reasons: set[str] = set()  # most reasons do not depend on the number of replicas
        for count in counts:
            try:
                cluster = _cluster(engine, count, shards, learners)
                comparison = _compare(algorithm, environment, graph, policy, cluster, engine, seed, expected)
            except ConfigError as error:
                if policies:
                    raise
                comparison = Comparison(str(policy), count, refused=str(error))
            except Exception as error:
                error.add_note(f"raised while verifying distribution policy '{policy}' with {count} replicas")
                raise
            if comparison.refused not in reasons:
                yield comparison
            reasons |= {comparison.refused} - {""}
            compared |= not comparison.refused
    if not compared:
        raise ConfigError(
            "no distribution policy can place this algorithm with these numbers of replicas: nothing was verified"
        )


def devices_for(replicas: Sequence[int], shards: int = 0, learners: int = 1) -> int:
    """Number of devices that gives each replica, and one more fragment, its own device; also each of these shards and
    learners."""
    return max(replicas, default=max(REPLICAS)) + shards + learners


def _compare(
    algorithm: Algorithm,
    env: Environment,
    graph: Graph,
    policy: str | Policy,
    cluster: Cluster,
    engine: str,
    seed: int,
    expected: "_Plain",
) -> Comparison:
    _check_synchronous(graph, policy, cluster)
    plan = project(graph, policy, cluster, merge=False)
    setup = Setup(plan, algorithm, env, policy, cluster, merge=False, seed=seed)
    bitwise, largest, difference = True, [], None
    with contextlib.closing(_under(plan, setup, engine, len(expected.snapshots) - 1)) as snapshots:
        for iteration, snapshot in enumerate(snapshots):
            snapshot_gap = gap(expected.snapshots[iteration], snapshot, iteration, expected.rounding)
            bitwise, difference = bitwise and snapshot_gap.bitwise, snapshot_gap.difference
            largest.append(snapshot_gap.largest)
            if difference:
                break
    return Comparison(plan.policy, cluster.replicas, "", bitwise, tuple(largest), difference)


def _cluster(engine: str, replicas: int, shards: int, learners: int) -> Cluster:
    kind = ENGINES[engine]
    on_cpu = kind.apart and jax.default_backend() == "cpu"
    processes = devices_for([replicas], shards, learners) if on_cpu else None
    cluster = kind.cluster(EngineOptions(), replicas, processes=processes)
    return dataclasses.replace(cluster, shards=shards, learners=learners)


def _check_synchronous(graph: Graph, policy: str | Policy, cluster: Cluster) -> None:
    fragments = resolve(policy)(graph.top_stages, informed(cluster, graph))
    if not all(delivery.waits for fragment in fragments for delivery in getattr(fragment, "delivery", ())):
        name = policy if isinstance(policy, str) else getattr(policy, "__name__", "policy")
        raise ConfigError(f"distribution policy '{name}' cannot be verified: {ASYNCHRONOUS}")


@dataclasses.dataclass(frozen=True)
class _Plain:
    """The snapshots of the plain program before the first iteration and after each, and its rounding tolerance."""

    snapshots: list[Snapshot]
    rounding: float


def _plain(algorithm: Algorithm, env: Environment, graph: Graph, iterations: int, seed: int) -> _Plain:
    init = jax.jit(lambda key: algorithm.init(env, key))
    lowered = jax.jit(iteration(algorithm, env)).lower(jax.eval_shape(init, jax.random.key(seed)))
    iterate = lowered.compile()

    def run() -> Iterator[Snapshot]:
        with env.opened():
            state = init(jax.random.key(seed))
            yield _snapshot(graph, state)
            for _ in range(iterations):
                state, metrics = iterate(state)
                yield _snapshot(graph, state, jax.tree.leaves(metrics))

    snapshots = list(run())
    if not env.is_replayable:
        gaps = [gap(one, other, 0, 0.0) for one, other in zip(snapshots, run(), strict=True)]
        if not all(repeat_gap.bitwise for repeat_gap in gaps):
            raise ConfigError(
                f"'{env.title}' is not deterministic for the same seeds, so nothing that uses it can be compared: "
                f"run '{command('check-env', env.title)}' for details"
            )
    return _Plain(snapshots, rounding(lowered.as_text()))


def _snapshot(graph: Graph, state: Any, metrics: Sequence[Any] = ()) -> Snapshot:
    """Copies on the host, by the names in the graph; without metrics for the initial state."""
    names = graph.metric_names if metrics else ()
    return Snapshot(
        dict(zip(graph.state_names, to_arrays(jax.tree.leaves(state)).values(), strict=True)),
        dict(zip(names, to_arrays(list(metrics)).values(), strict=True)),
    )


def _under(plan: Plan, setup: Setup, engine_name: str, iterations: int) -> Generator[Snapshot]:
    """The snapshots of the fragments of a plan."""
    engine = ENGINES[engine_name](setup)
    with engine.env.opened(plan.lanes), engine:
        state = jax.jit(lambda key: setup.algorithm.init(engine.env, key))(jax.random.key(setup.seed))
        yield _snapshot(plan.graph, state)
        engine.begin(jax.tree.leaves(state))
        for _ in range(iterations):
            (report,) = engine.run(1)
            metrics = [report.metrics[i] for i in range(len(plan.graph.metric_names))]
            yield _snapshot(plan.graph, engine.state(), metrics)
        engine.finish()
