"""Whether a loop computes under policies what it computes as one program: run both, and compare all that comes out."""

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import jax

from fragmenta.algorithms import Algorithm
from fragmenta.checks.differences import Difference, Snapshot, gap, rounding
from fragmenta.coordinator.plan import project
from fragmenta.engines import ENGINES, EngineOptions, Setup
from fragmenta.engines.hardware import engine_cluster, ensure_cpu_devices, keep_compiled_programs
from fragmenta.envs import Environment, EnvOptions, HostEnvironment, make
from fragmenta.errors import ConfigError
from fragmenta.graph import Graph, Plan
from fragmenta.policies import POLICIES, Cluster, Policy, resolve
from fragmenta.runs.state import to_arrays
from fragmenta.tracing.trace import trace
from fragmenta.training.planning import check_run

REPLICAS = (2, 4)
"""With how many replicas policies are verified if nobody says."""
GREW = 10.0
"""By what factor rounding must grow from the first iteration on to be worth a word."""
ASYNCHRONOUS = "its fragments do not wait for each other, so the result depends on who is faster: nothing to compare"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One policy with one number of replicas, against the plain program."""

    policy: str
    replicas: int
    refused: str = ""
    """Why the policy cannot be compared; nothing ran then."""
    bitwise: bool = False
    """Whether every bit is the same."""
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
        return f"differs in {self.difference}{self._growth(', so it may be rounding that training magnifies')}"

    def _growth(self, conclusion: str) -> str:
        first = next((i for i, apart in enumerate(self.largest) if apart > 0), 0)
        if not max(self.largest) > GREW * self.largest[first]:
            return ""
        return f" (it was {self.largest[first]:.1e} after iteration {first}{conclusion})"


@dataclasses.dataclass(frozen=True)
class Verification:
    """What became of all policies that were to be verified."""

    comparisons: tuple[Comparison, ...]

    @property
    def equal(self) -> bool:
        """Whether every policy that could be compared gives what the plain program gives."""
        return self.first_difference is None

    @property
    def largest_difference(self) -> float:
        """Relative to the largest entry of its leaf; infinite if something is not the same that must be."""
        return max((max(one.largest) for one in self.comparisons if one.largest), default=0.0)

    @property
    def first_difference(self) -> Difference | None:
        """The leaf, and in it the entry, in which the first policy that differs does."""
        return next((one.difference for one in self.comparisons if one.difference), None)

    def __str__(self) -> str:
        return "\n".join(f"{one.policy} x{one.replicas}: {one}" for one in self.comparisons)


def verify(
    algorithm: Algorithm,
    env: str | Environment,
    policy: str | Policy | Sequence[str | Policy] | None = None,
    replicas: int | Sequence[int] | None = None,
    engine: str = "local",
    iterations: int = 3,
    seed: int = 0,
    env_options: EnvOptions | None = None,
) -> Verification:
    """Run a few iterations as `jax.jit(iterate)` and under policies, and compare all of the state and every metric.

    Without `policy`, all synchronous ones that can place the algorithm are verified; without `replicas`, each with two
    and with four. Whole numbers, booleans and keys must be the same, fractions within 1e-5.
    """
    policies = None if policy is None else [policy] if isinstance(policy, str) or callable(policy) else list(policy)
    counts = None if replicas is None else [replicas] if isinstance(replicas, int) else list(replicas)
    found = comparisons(algorithm, env, policies, counts, engine, iterations, seed, env_options)
    return Verification(tuple(found))


def comparisons(
    algorithm: Algorithm,
    env: str | Environment,
    policies: Sequence[str | Policy] | None,
    replicas: Sequence[int] | None,
    engine: str,
    iterations: int,
    seed: int,
    env_options: EnvOptions | None = None,
) -> Iterator[Comparison]:
    """As `verify`, one after the other. A policy that was asked for by name and cannot be compared is a ConfigError."""
    if iterations < 1:
        raise ConfigError(f"iterations is {iterations}: it must be at least 1")
    if wrong := [count for count in replicas or () if count < 1]:
        raise ConfigError(f"replicas is {wrong[0]}: it must be at least 1")
    counts = replicas or [count for count in REPLICAS if algorithm.num_envs % count == 0] or [1]
    if engine == "local":
        ensure_cpu_devices(devices_for(counts))  # before anything makes an array, which fixes their number
    environment = make(env, env_options)
    check_run(algorithm, environment, engine)
    keep_compiled_programs()
    graph = trace(algorithm, environment)
    expected = _plain(algorithm, environment, graph, iterations, seed)
    compared = False
    for policy in policies or POLICIES:
        reasons: set[str] = set()  # most do not depend on the number of replicas
        for count in counts:
            try:
                found = _compare(algorithm, environment, graph, policy, count, engine, seed, expected)
            except ConfigError as error:
                if policies:
                    raise
                found = Comparison(str(policy), count, refused=str(error))
            except Exception as error:
                error.add_note(f"raised while policy '{policy}' was verified with {count} replicas")
                raise
            if found.refused not in reasons:
                yield found
            reasons |= {found.refused} - {""}
            compared |= not found.refused
    if not compared:
        raise ConfigError("no policy can place this algorithm with so many replicas: nothing was verified")


def devices_for(replicas: Sequence[int]) -> int:
    """How many devices let each replica, and a fragment apart from them, have one of its own."""
    return max(replicas, default=max(REPLICAS)) + 1


def _compare(
    algorithm: Algorithm,
    env: Environment,
    graph: Graph,
    policy: str | Policy,
    replicas: int,
    engine: str,
    seed: int,
    expected: "_Plain",
) -> Comparison:
    cluster = _cluster(engine, replicas)
    _check_synchronous(graph, policy, cluster)
    plan = project(graph, policy, cluster, merge=False)
    setup = Setup(plan, algorithm, env, policy, cluster, merge=False, seed=seed)
    bitwise, largest, difference = True, [], None
    with contextlib.closing(_under(plan, setup, engine, len(expected.snapshots) - 1)) as snapshots:
        for iteration, found in enumerate(snapshots):
            apart = gap(expected.snapshots[iteration], found, iteration, expected.rounding)
            bitwise, difference = bitwise and apart.bitwise, apart.difference
            largest.append(apart.largest)
            if difference:
                break
    return Comparison(plan.policy, replicas, "", bitwise, tuple(largest), difference)


def _cluster(engine: str, replicas: int) -> Cluster:
    on_processors = engine != "local" and jax.default_backend() == "cpu"
    return engine_cluster(
        engine, EngineOptions(), replicas, processes=devices_for([replicas]) if on_processors else None
    )


def _check_synchronous(graph: Graph, policy: str | Policy, cluster: Cluster) -> None:
    seen = dataclasses.replace(cluster, agents=graph.sizes["agents"], host=graph.host_stages)
    fragments = resolve(policy)(graph.top_stages, seen)
    if not all(delivery.waits for fragment in fragments for delivery in getattr(fragment, "delivery", ())):
        name = policy if isinstance(policy, str) else getattr(policy, "__name__", "policy")
        raise ConfigError(f"policy '{name}' cannot be verified: {ASYNCHRONOUS}")


@dataclasses.dataclass(frozen=True)
class _Plain:
    """What the unsplit program computes, before the first iteration and after each, and how coarsely it does."""

    snapshots: list[Snapshot]
    rounding: float


def _plain(algorithm: Algorithm, env: Environment, graph: Graph, iterations: int, seed: int) -> _Plain:
    init = jax.jit(lambda key: algorithm.init(env, key))
    lowered = jax.jit(lambda state: algorithm.iterate(env, state)).lower(jax.eval_shape(init, jax.random.key(seed)))
    iterate = lowered.compile()

    def run() -> Iterator[Snapshot]:
        with env.opened():
            state = init(jax.random.key(seed))
            yield _snapshot(graph, state)
            for _ in range(iterations):
                state, metrics = iterate(state)
                yield _snapshot(graph, state, jax.tree.leaves(metrics))

    found = list(run())
    if isinstance(env, HostEnvironment):
        again = [gap(one, other, 0, 0.0) for one, other in zip(found, run(), strict=True)]
        if not all(apart.bitwise for apart in again):
            raise ConfigError(
                f"'{env.title}' does not repeat itself with the same seeds, so nothing that uses it can be compared: "
                f"'fragmenta check-env {env.title}' says more"
            )
    return _Plain(found, rounding(lowered.as_text()))


def _snapshot(graph: Graph, state: Any, metrics: Sequence[Any] = ()) -> Snapshot:
    """Copies on the host, by the names that the graph has for them; of the state at the beginning, without metrics."""
    names = graph.metric_names if metrics else ()
    return Snapshot(
        dict(zip(graph.state_names, to_arrays(jax.tree.leaves(state)).values(), strict=True)),
        dict(zip(names, to_arrays(list(metrics)).values(), strict=True)),
    )


def _under(plan: Plan, setup: Setup, engine_name: str, iterations: int) -> Generator[Snapshot]:
    """The same as the fragments of a plan compute it."""
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
