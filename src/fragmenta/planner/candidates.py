"""What a plan may be: distribution policies with numbers of replicas, engines, lags and devices."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from fragmenta.algorithms import Algorithm
from fragmenta.coordinator.plan import informed, project
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.graph import Graph, Plan
from fragmenta.planner.units import Unit, units
from fragmenta.policies import POLICIES, Cluster, Policy, resolve
from fragmenta.worker.backends.unrolling import UNROLL
from fragmenta.worker.optimize import optimize
from fragmenta.worker.steps import Schedule


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run an algorithm."""

    policy: str | Policy
    engine: str
    cluster: Cluster
    plan: Plan = dataclasses.field(repr=False)
    schedules: dict[str, Schedule] = dataclasses.field(repr=False)
    is_apart: bool = False

    @functools.cached_property
    def units(self) -> dict[str, list[Unit]]:
        """What is compiled for each fragment; traced once."""
        return {name: units(schedule, self.is_apart) for name, schedule in self.schedules.items()}

    @property
    def name(self) -> str:
        """The name of its distribution policy."""
        return self.policy if isinstance(self.policy, str) else getattr(self.policy, "__name__", "policy")

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
    merge: bool = True


def candidates(algorithm: Algorithm, env: Environment, graph: Graph, space: Space) -> Iterator[Candidate]:
    """All candidates that can run, each program only once: the simplest way to it comes first."""
    known: set[tuple[object, ...]] = set()
    for engine, is_apart, whole in space.engines:
        for devices in _devices(whole, is_apart):
            for replicas in space.replicas or _replicas(algorithm.num_envs, len(devices), env):
                for policy in space.policies:
                    for lag in space.lags if algorithm.allows_lag else (0,):
                        cluster = dataclasses.replace(
                            whole, devices=devices, replicas=replicas, lag=lag, apart=is_apart
                        )
                        if lag and not _overlaps(graph, policy, cluster):
                            continue
                        candidate = candidate_of(graph, policy, engine, cluster, space.merge)
                        if candidate is None or (candidate.plan.lags and not algorithm.allows_lag):
                            continue
                        if (key := identity_of(candidate)) not in known:
                            known.add(key)
                            yield candidate


def _overlaps(graph: Graph, policy: str | Policy, cluster: Cluster) -> bool:
    """Whether a distribution policy has fragments that may lag behind, as far as it says so."""
    try:
        fragments = resolve(policy)(graph.top_stages, informed(cluster, graph))
    except ConfigError:
        return False
    return any(delivery.lag for fragment in fragments for delivery in fragment.delivery)


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
    return Candidate(policy, engine, cluster, plan, schedules, cluster.apart)


def identity_of(candidate: Candidate) -> tuple[object, ...]:
    """Equal for candidates that do the same: the same programs on the same devices with the same crossings."""
    plan = candidate.plan
    if len(plan.programs) == 1 and (alone := plan.programs[0]).parts == 1:
        return candidate.engine, alone.fragment.devices  # all stages in one program, whatever its fragment is called
    programs = tuple(
        (
            tuple(unit.identity for unit in its_units),
            plan[name].fragment.devices,
            plan[name].replicas,
        )
        for name, its_units in candidate.units.items()
    )
    crossings = tuple((i.value.shape, i.operator, i.times, i.delivery) for i in plan.interfaces)
    return candidate.engine, tuple(sorted(programs)), crossings


def _devices(cluster: Cluster, is_apart: bool) -> list[tuple[str, ...]]:
    """The devices to choose from: the first alone, or all; processes take all that they need."""
    if is_apart or len(cluster.devices) == 1:
        return [cluster.devices]
    return [cluster.devices[:1], cluster.devices]


def _replicas(num_envs: int, devices: int, env: Environment) -> Sequence[int]:
    """Powers of two and the number of devices that divide the environments, up to the number of devices; with
    environments on the host two on one device, of which one steps while the other acts."""
    most = max(devices, 2 if env.host_pool else 1)
    sizes = sorted({2**i for i in range(most.bit_length())} | {most})
    return [size for size in sizes if size <= most and num_envs % size == 0]
