"""What a plan may be: distribution policies with numbers of replicas, engines, lags and devices, whether fragments are
merged, and ways to step environments on the host."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import jax

from fragmenta.algorithms import Algorithm
from fragmenta.coordinator.plan import informed, project
from fragmenta.engines import engine_named
from fragmenta.engines.base import EngineOptions
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.graph import Fragment, Graph, Plan
from fragmenta.planner.units import Unit, units
from fragmenta.policies import POLICIES, Cluster, Policy, resolve
from fragmenta.worker.backends.unrolling import UNROLL
from fragmenta.worker.backends.xla import host_devices
from fragmenta.worker.optimize import optimize
from fragmenta.worker.steps import Schedule
from fragmenta_host.options import cores


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run an algorithm."""

    policy: str | Policy
    engine: str
    cluster: Cluster
    plan: Plan = dataclasses.field(repr=False)
    schedules: dict[str, Schedule] = dataclasses.field(repr=False)
    is_apart: bool = False
    merge: bool = True
    env_mode: str | None = None
    """How environments on the host are stepped; None as their options say."""

    @functools.cached_property
    def units(self) -> dict[str, list[Unit]]:
        """What is compiled for each fragment; traced once."""
        return {name: units(schedule, self.is_apart) for name, schedule in self.schedules.items()}

    @property
    def name(self) -> str:
        """The name of its distribution policy."""
        return self.policy if isinstance(self.policy, str) else getattr(self.policy, "__name__", "policy")

    @property
    def is_beside(self) -> bool:
        """Whether it leaves an accelerator idle, in favour of the CPU."""
        return self.cluster.devices[0].startswith("cpu:") and jax.default_backend() != "cpu"

    @property
    def keeps_result(self) -> bool:
        """Whether it gives the result of the plain program."""
        return not self.plan.lags

    @property
    def description(self) -> str:
        """Its distribution policy with what is not the default, as on the command line."""
        cluster = self.cluster
        parts = [self.name, f"x{cluster.replicas}"]
        parts += [f"lag {cluster.lag}"] if cluster.lag else []
        parts += [f"on {self.engine}"] if self.engine != "local" else []
        used = {device for program in self.plan.programs for device in program.fragment.devices}
        parts += [f"over {len(used)} devices"] if len(used) > 1 else []
        parts += ["on the CPU"] if self.is_beside else []
        parts += [f"env-mode {self.env_mode}"] if self.env_mode else []
        parts += [] if self.merge else ["no-merge"]
        return " ".join(parts)


@dataclasses.dataclass(frozen=True)
class Space:
    """What to choose from."""

    policies: tuple[str | Policy, ...] = tuple(POLICIES)
    engines: tuple[tuple[str, bool, Cluster], ...] = ()
    """Names of engines, whether each starts processes, and all devices that it may use."""
    replicas: tuple[int, ...] = ()
    """Numbers of replicas; none means powers of two and the numbers of devices."""
    lags: tuple[int, ...] = (0,)
    merges: tuple[bool, ...] = (True,)
    """Whether fragments and replicas that share a device are merged."""
    env_modes: tuple[str | None, ...] = (None,)
    """How environments on the host are stepped, where that is in the process of the run."""


def candidates(algorithm: Algorithm, env: Environment, graph: Graph, space: Space) -> Iterator[Candidate]:
    """All candidates that can run, each program only once: the simplest way to it comes first."""
    placed: set[tuple[object, ...]] = set()
    known: set[tuple[object, ...]] = set()
    lags = space.lags if algorithm.allows_lag else (0,)
    for engine, is_apart, whole in space.engines:
        for devices in _devices(whole, is_apart):
            replicas = space.replicas or _replicas(algorithm.num_envs, len(devices), env)
            for count, policy, lag, merge in itertools.product(replicas, space.policies, lags, space.merges):
                cluster = dataclasses.replace(whole, devices=devices, replicas=count, lag=lag, apart=is_apart)
                fragments = fragments_of(graph, policy, cluster)
                if fragments is None or (lag and not any(d.lag for fragment in fragments for d in fragment.delivery)):
                    continue
                # Where that shows already before projecting or tracing, a program is not looked at twice.
                if (key := (engine, lag, merge, repr(fragments))) in placed or not (merge or _shares(fragments)):
                    continue
                placed.add(key)
                candidate = candidate_of(graph, policy, engine, cluster, merge)
                if candidate is None or (candidate.plan.lags and not algorithm.allows_lag):
                    continue
                merged = repr([program.fragment for program in candidate.plan.programs])
                if (key := (engine, lag, merged)) in placed:
                    continue
                placed.add(key)
                if (key := kind_of_plan(candidate)) not in known:
                    known.add(key)
                    yield from _by_env_mode(candidate, (None,) if is_apart else space.env_modes)


def engines_here(env: Environment, engine: str | None, cluster: Cluster) -> tuple[tuple[str, bool, Cluster], ...]:
    """The engines to choose from on this machine, as in `Space`, if the user leaves that open. Environments on the host
    may be stepped by processes, and beside an accelerator all may be computed on the CPU: small networks take less time
    there than values take to an accelerator and back."""
    kind = engine_named(engine or "local")
    engines = [(engine or "local", kind.apart, dataclasses.replace(cluster, apart=kind.apart))]
    if engine is not None or env.host_pool is None or env.host_pool.spec.bound_here is not None:
        return tuple(engines)
    if not cluster.devices[0].startswith("cpu:") and host_devices():
        engines.append(("local", False, dataclasses.replace(cluster, devices=("cpu:0",), apart=False)))
    others = engine_named("processes").cluster(EngineOptions())
    engines.append(("processes", True, dataclasses.replace(cluster, devices=others.devices, apart=True)))
    return tuple(engines)


def env_modes(env: Environment) -> tuple[str | None, ...]:
    """The ways to step environments on the host in one process, if the user leaves that open."""
    pool = env.host_pool
    if pool is None or pool.options.mode != "auto" or pool.options.restarts or pool.spec.is_vector:
        return (None,)
    return (None,) if pool.spec.bound_here or cores() == 1 else ("serial", "threads", "processes")


def fragments_of(graph: Graph, policy: str | Policy, cluster: Cluster) -> tuple[Fragment, ...] | None:
    """The fragments of a distribution policy, as far as it says so; None if it cannot place these stages, or does not
    return fragments."""
    try:
        returned = resolve(policy)(graph.top_stages, informed(cluster, graph))
    except ConfigError:
        return None
    fragments = tuple(returned) if isinstance(returned, Iterable) else ()
    return fragments if fragments and all(isinstance(fragment, Fragment) for fragment in fragments) else None


def check_placeable(policies: Sequence[str | Policy], graph: Graph, space: Space) -> None:
    """ConfigError for a distribution policy that cannot place the algorithm on any number of replicas."""
    for policy in policies:
        problems = [
            _problem(graph, policy, dataclasses.replace(cluster, replicas=count))
            for _, _, cluster in space.engines
            for count in space.replicas or sorted({1, 2, len(cluster.devices)})
        ]
        if None not in problems and problems[0]:
            raise problems[0]


def _problem(graph: Graph, policy: str | Policy, cluster: Cluster) -> ConfigError | None:
    try:
        project(graph, policy, cluster)
    except ConfigError as error:
        return error
    return None


def _shares(fragments: Sequence[Fragment]) -> bool:
    """Whether fragments or replicas share a device, so that there is something to merge."""
    used = [device for fragment in fragments for device in fragment.devices]
    return len(set(used)) < sum(max(len(fragment.devices), fragment.replicas) for fragment in fragments)


def _by_env_mode(candidate: Candidate, modes: Sequence[str | None]) -> Iterator[Candidate]:
    """The same candidate with its environments stepped in each of these ways."""
    for mode in modes:
        variant = dataclasses.replace(candidate, env_mode=mode)
        vars(variant)["units"] = candidate.units  # the same are compiled, and need not be traced again
        yield variant


def candidate_of(graph: Graph, policy: str | Policy, engine: str, cluster: Cluster, merge: bool) -> Candidate | None:
    """The candidate, or None if the distribution policy cannot place this algorithm so."""
    try:
        plan = project(graph, policy, cluster, merge)
    except ConfigError:
        return None
    counts = {program.fragment.name: program.replicas for program in plan.programs}
    schedules = {
        program.fragment.name: optimize(program, counts, UNROLL.get(program.fragment.devices[0].partition(":")[0], 1))
        for program in plan.programs
    }
    return Candidate(policy, engine, cluster, plan, schedules, cluster.apart, merge)


def kind_of_plan(candidate: Candidate) -> tuple[object, ...]:
    """Equal for candidates for one algorithm that do the same: all stages in one program on one device are one plan,
    whatever its fragment is called and however it calls them."""
    plan = candidate.plan
    if len(plan.programs) == 1 and (alone := plan.programs[0]).parts == 1:
        return candidate.engine, alone.fragment.devices
    return identity_of(candidate)


def identity_of(candidate: Candidate) -> tuple[object, ...]:
    """Equal for candidates that do the same: the same programs on the same devices with the same crossings, which step
    environments in the same way."""
    plan = candidate.plan
    programs = tuple(
        (
            tuple(unit.identity for unit in its_units),
            plan[name].fragment.devices,
            plan[name].replicas,
        )
        for name, its_units in candidate.units.items()
    )
    deliveries = [dataclasses.replace(interface.delivery, source="") for interface in plan.interfaces]
    crossings = tuple(
        (i.value.shape, i.operator, i.times, delivery) for i, delivery in zip(plan.interfaces, deliveries, strict=True)
    )
    return candidate.engine, candidate.env_mode, tuple(sorted(programs)), crossings


def _devices(cluster: Cluster, is_apart: bool) -> list[tuple[str, ...]]:
    """The devices to choose from: powers of two of them, and all; processes take all that they need."""
    count = len(cluster.devices)
    if is_apart:
        return [cluster.devices]
    return [
        cluster.devices[:size] for size in sorted({2**i for i in range(count.bit_length())} | {count}) if size <= count
    ]


def _replicas(num_envs: int, devices: int, env: Environment) -> Sequence[int]:
    """Powers of two and the number of devices that divide the environments, up to the number of devices; with
    environments on the host two on one device, of which one steps while the other acts."""
    most = max(devices, 2 if env.host_pool else 1)
    sizes = sorted({2**i for i in range(most.bit_length())} | {most})
    return [size for size in sizes if size <= most and num_envs % size == 0]
