"""Runs the programs of a plan on virtual time."""

import dataclasses
import functools
from collections.abc import Mapping

from fragmenta.engines.dispatch import Route, routes
from fragmenta.graph import Interface, Operator, Plan, Program
from fragmenta.graph.layout import Split
from fragmenta.planner.clock import Load, Process, VirtualClock
from fragmenta.planner.costs import Costs, Hop
from fragmenta.planner.sampling import Sample, samples
from fragmenta.planner.virtual_channels import VirtualChannel, VirtualMailbox
from fragmenta.planner.virtual_worker import VirtualPorts, VirtualWorker
from fragmenta.profiling.measure import measure
from fragmenta.profiling.timeline import WorkerTimeline
from fragmenta.profiling.timings import Timings
from fragmenta.worker.steps import Schedule

WARM_UP, ITERATIONS = 2, 4
"""Iterations before those that count, and those that count."""
MOST_SIMULATED = 8
"""With more replicas of a fragment, so many stand for all of it."""


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What a plan would do: its workers, when all is done, and the seconds that an iteration takes."""

    workers: tuple[VirtualWorker, ...] = dataclasses.field(repr=False)
    seconds: float
    lag: float | None
    """The mean number of versions by which acting is behind learning, if it is not synchronous."""

    @functools.cached_property
    def timelines(self) -> tuple[WorkerTimeline, ...]:
        """What the workers did and when; most simulations are only asked how long it took."""
        return tuple(worker.timeline() for worker in self.workers)

    @property
    def timings(self) -> Timings:
        """Where the time goes, as for a run."""
        return measure(self.timelines)


def simulate(
    plan: Plan,
    schedules: Mapping[str, Schedule],
    costs: Costs,
    most: int = MOST_SIMULATED,
    periods: tuple[int, int] = (WARM_UP, ITERATIONS),
) -> Simulation:
    """Run the schedules of all fragments until the time of an iteration is steady. Of more than `most` replicas of a
    fragment so many stand for all; `periods` has the iterations before those that count, and those that count."""
    clock = VirtualClock(costs.capacities)
    chosen = samples(plan, costs, most)
    ports = _ports(plan, clock, costs, chosen)
    # Where free-running replicas stand for several, each of their bundles does: what takes them takes as much longer.
    arrivals = len(chosen[plan.feeder].replicas) if plan.feeder else 1
    stretch = plan.arrivals / arrivals
    steady: list[VirtualWorker] = []
    free: list[VirtualWorker] = []
    for name, sample in chosen.items():
        is_free = name in plan.free_running
        for seed, replica in enumerate(sample.replicas):
            its_ports = ports.setdefault((name, replica), VirtualPorts())
            worker = VirtualWorker(schedules[name], replica, clock, costs, its_ports, seed)
            worker.stand_for(1.0 if is_free else sample.weights[replica], sample.crowds, 1.0 if is_free else stretch)
            (free if is_free else steady).append(worker)
    first, total = periods[0] * arrivals, sum(periods) * arrivals
    ends: list[float] = []
    for worker in steady:
        clock.start(_until(worker, total, clock, ends))
    for worker in free:
        clock.start(worker.run(float("inf")))
    clock.run(lambda: len(ends) == len(steady))
    if len(ends) < len(steady):
        raise RuntimeError(f"the simulation of distribution policy '{plan.policy}' came to a standstill")
    spans = [(worker.iterations[first - 1].end, worker.iterations[-1].end) for worker in steady]
    slowest = max(end - begin for begin, end in spans) / 1e9 / (total - first) / stretch
    seconds = max(slowest, costs.overheads.report)  # reports are read while workers go on
    lags = [lag * stretch for worker in steady for lag in worker.lags[first:]]
    return Simulation((*steady, *free), seconds, sum(lags) / len(lags) if lags else None)


def _until(worker: VirtualWorker, iterations: int, clock: VirtualClock, ends: list[float]) -> Process:
    yield from worker.run(iterations)
    ends.append(clock.now)
    yield Load(0.0, {})


def _ports(
    plan: Plan, clock: VirtualClock, costs: Costs, chosen: Mapping[str, Sample]
) -> dict[tuple[str, int], VirtualPorts]:
    ports: dict[tuple[str, int], VirtualPorts] = {}
    mailboxes: dict[tuple[str, str, int], VirtualMailbox] = {}
    for route in routes(plan, {name: sample.replicas for name, sample in chosen.items()}):
        source = ports.setdefault((route.producer, route.source), VirtualPorts())
        target = ports.setdefault((route.consumer, route.target), VirtualPorts())
        hop = _hop(route, chosen[route.producer], chosen[route.consumer], costs)
        interface = route.interfaces[0]
        if route.delivery.kind == "every":
            channel = VirtualChannel(clock, hop)
            source.outgoing.setdefault(interface.key, []).append(channel)
            target.incoming.setdefault(interface.key, []).append(channel)
            continue
        fresh = route.delivery.kind == "any" and route.delivery.max_lag is not None
        box = mailboxes.setdefault(route.box, VirtualMailbox(clock, route.delivery.kind, fresh))
        if route.delivery.kind == "reply":
            source.replies.setdefault(route.consumer, {})[route.target] = box, hop
        else:
            source.posts[route.consumer] = box, hop
        target.pickups[route.producer] = box, hop
    return ports


def _hop(route: Route, producer: Sample, consumer: Sample, costs: Costs) -> Hop:
    """What a message over a route costs, with those between replicas that are not simulated."""
    size = sum(_size(interface, producer.program, consumer.program) for interface in route.interfaces)
    source, target = producer.device(route.source), consumer.device(route.target)
    hop = costs.hop(source, target, size)
    if producer.is_whole and consumer.is_whole:
        return hop
    sends_all, takes_all = _reach(route, producer.program.replicas, consumer.program.replicas)
    is_paired = not (sends_all or takes_all)
    targets = consumer.weights[route.target] if sends_all else 1.0
    sources = producer.weights[route.source] if takes_all else 1.0
    leaving = targets * (producer.neighbours.get(costs.node_of(source), 1.0) if takes_all or is_paired else 1.0)
    arriving = sources * (consumer.neighbours.get(costs.node_of(target), 1.0) if sends_all or is_paired else 1.0)
    shared = dict(zip(hop.shared, (leaving, arriving), strict=True)) if hop.shared else {}
    return dataclasses.replace(hop, send=hop.send * targets, receive=hop.receive * sources, shared=shared)


def _reach(route: Route, sources: int, targets: int) -> tuple[bool, bool]:
    """Whether the source sends to all replicas of the consumer, and whether the target receives from all of the
    producer; if neither, each has one partner."""
    operator = route.interfaces[0].operator
    if route.delivery.kind != "every":
        is_paired = route.delivery.kind == "any" and targets > 1
        return (False, False) if is_paired else (targets > 1, sources > 1)
    if operator == Operator.ALL_TO_ALL:
        return True, True
    if operator in (Operator.GATHER, Operator.REDUCE):
        return False, True
    return operator in (Operator.BROADCAST, Operator.SCATTER) or sources != targets, False


def _size(interface: Interface, producer: Program, consumer: Program) -> int:
    """The bytes of one message: all of the value, or the part of one replica."""
    whole = interface.value.bytes
    if interface.operator == Operator.SCATTER:
        return whole // consumer.replicas
    if interface.operator == Operator.GATHER:
        return whole // producer.replicas
    if interface.operator == Operator.ALL_TO_ALL:
        return whole // (producer.replicas * consumer.replicas)
    is_split = isinstance(interface.producer_layout, Split) and interface.operator == Operator.SEND
    return whole // producer.replicas if is_split else whole
