"""Runs the programs of a plan on virtual time."""

import dataclasses
from collections.abc import Mapping

from fragmenta.engines.dispatch import Route, routes
from fragmenta.graph import Interface, Operator, Plan, Program
from fragmenta.graph.layout import Split
from fragmenta.planner.clock import Load, Process, VirtualClock
from fragmenta.planner.costs import Costs, Hop
from fragmenta.planner.virtual_channels import VirtualChannel, VirtualMailbox
from fragmenta.planner.virtual_worker import VirtualPorts, VirtualWorker
from fragmenta.profiling.measure import measure
from fragmenta.profiling.timeline import WorkerTimeline
from fragmenta.profiling.timings import Timings
from fragmenta.worker.steps import Schedule

WARM_UP, ITERATIONS = 2, 4
"""Iterations before those that count, and those that count."""
MOST_SIMULATED = 8
"""With more replicas, so many stand for all of a fragment: they do the same at the same time."""


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What a plan would do: the timelines of its workers, and the seconds that an iteration takes."""

    timelines: tuple[WorkerTimeline, ...]
    seconds: float
    lag: float | None
    """The mean number of versions by which acting is behind learning, if it is not synchronous."""

    @property
    def timings(self) -> Timings:
        """Where the time goes, as for a run."""
        return measure(self.timelines)


def simulate(plan: Plan, schedules: Mapping[str, Schedule], costs: Costs) -> Simulation:
    """Run the schedules of all fragments until the time of an iteration is steady."""
    clock = VirtualClock(costs.capacities)
    ports = _ports(plan, clock, costs)
    workers: list[VirtualWorker] = []
    for program in plan.programs:
        name, chosen = program.fragment.name, _simulated(program.replicas)
        for seed, replica in enumerate(chosen):
            stands_for = program.replicas / len(chosen)
            own = ports.setdefault((name, replica), VirtualPorts())
            workers.append(VirtualWorker(schedules[name], replica, stands_for, clock, costs, own, seed))
    steady = [worker for worker in workers if worker.schedule.program.fragment.name not in plan.free_running]
    free = [worker for worker in workers if worker not in steady]
    total = WARM_UP * plan.arrivals + ITERATIONS * plan.arrivals
    ends: list[float] = []
    for worker in steady:
        clock.start(_until(worker, total, clock, ends))
    for worker in free:
        clock.start(worker.run(float("inf")))
    clock.run(lambda: len(ends) == len(steady))
    if len(ends) < len(steady):
        raise RuntimeError(f"the simulation of distribution policy '{plan.policy}' came to a standstill")
    first = WARM_UP * plan.arrivals
    timelines = [worker.timeline() for worker in (*steady, *free)]
    spans = [(t.iterations[first - 1].end, t.iterations[-1].end) for t in timelines[: len(steady)]]
    seconds = max(end - begin for begin, end in spans) / 1e9 / (total - first) + costs.overheads.report
    lags = [lag for worker in steady for lag in worker.lags[first:]]
    return Simulation(tuple(timelines), seconds, sum(lags) / len(lags) if lags else None)


def _until(worker: VirtualWorker, iterations: int, clock: VirtualClock, ends: list[float]) -> Process:
    yield from worker.run(iterations)
    ends.append(clock.now)
    yield Load(0.0, {})


def _simulated(replicas: int) -> list[int]:
    """The replicas that are simulated: all of a few, or some of many, the first and the last among them."""
    if replicas <= MOST_SIMULATED:
        return list(range(replicas))
    return sorted({round(i * (replicas - 1) / (MOST_SIMULATED - 1)) for i in range(MOST_SIMULATED)})


def _ports(plan: Plan, clock: VirtualClock, costs: Costs) -> dict[tuple[str, int], VirtualPorts]:
    programs = {program.fragment.name: program for program in plan.programs}
    chosen = {name: _simulated(program.replicas) for name, program in programs.items()}
    ports: dict[tuple[str, int], VirtualPorts] = {}
    mailboxes: dict[tuple[str, str, int], VirtualMailbox] = {}
    for route in routes(plan):
        if route.source not in chosen[route.producer] or route.target not in chosen[route.consumer]:
            continue
        source = ports.setdefault((route.producer, route.source), VirtualPorts())
        target = ports.setdefault((route.consumer, route.target), VirtualPorts())
        hop = _hop(route, programs, chosen, costs)
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


def _hop(route: Route, programs: Mapping[str, Program], chosen: Mapping[str, list[int]], costs: Costs) -> Hop:
    """What a message over a route costs, with those of the replicas that are not simulated."""
    producer, consumer = programs[route.producer], programs[route.consumer]
    size = sum(_size(interface, producer, consumer) for interface in route.interfaces)
    hop = costs.hop(_device(producer, route.source), _device(consumer, route.target), size)
    sources, targets = producer.replicas / len(chosen[route.producer]), consumer.replicas / len(chosen[route.consumer])
    if producer.replicas == consumer.replicas:
        return hop  # each sends to one, or is sent to by one
    return dataclasses.replace(
        hop, send=hop.send * targets, receive=hop.receive * sources, bytes=round(hop.bytes * max(sources, targets))
    )


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


def _device(program: Program, replica: int) -> str:
    devices = program.fragment.devices
    return devices[replica % len(devices)]
