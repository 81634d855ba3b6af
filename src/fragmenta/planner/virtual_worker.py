"""A worker on virtual time: it takes the steps of a schedule, as `worker.execute` does, but computes nothing."""

import collections
import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fragmenta.graph import Interface
from fragmenta.graph.program import sent
from fragmenta.planner.clock import Load, Process, VirtualClock
from fragmenta.planner.costs import INTERPRETER, Cost, Costs, Hop
from fragmenta.planner.virtual_channels import VirtualBundle, VirtualChannel, VirtualMailbox
from fragmenta.profiling.timeline import Crossing, Iteration, Part, Span, WorkerTimeline
from fragmenta.worker.steps import Host, Put, Rounds, Schedule, Segment, Step, Take

NO_CROWDS: Mapping[str, float] = {}


@dataclasses.dataclass
class VirtualPorts:
    """The channels of a virtual worker, by interface, and its mailboxes, by the fragment on the other side."""

    outgoing: dict[tuple[int, str], list[VirtualChannel]] = dataclasses.field(default_factory=dict)
    incoming: dict[tuple[int, str], list[VirtualChannel]] = dataclasses.field(default_factory=dict)
    posts: dict[str, tuple[VirtualMailbox, Hop]] = dataclasses.field(default_factory=dict)
    pickups: dict[str, tuple[VirtualMailbox, Hop]] = dataclasses.field(default_factory=dict)
    replies: dict[str, dict[int, tuple[VirtualMailbox, Hop]]] = dataclasses.field(default_factory=dict)


class VirtualWorker:
    """One replica of a fragment."""

    def __init__(
        self,
        schedule: Schedule,
        replica: int,
        clock: VirtualClock,
        costs: Costs,
        ports: VirtualPorts,
        seed: int,
    ) -> None:
        self.schedule, self.replica = schedule, replica
        self._stands_for, self._crowds, self._stretch = 1.0, NO_CROWDS, 1.0
        self._clock, self._costs, self._ports = clock, costs, ports
        self._program = schedule.program
        self._random = random.Random(seed)
        sends = [i for i in sent(self._program.instructions) if not i.delivery.waits]
        self._sizes = collections.Counter(i.consumer for i in sends)
        self._prices: dict[int, tuple[Cost, Mapping[str, float]]] = {}
        self._idle = self._resources(Cost(0.0, interpreter=1.0))
        """What it occupies while it passes values on."""
        self._until_met = 1
        """How many steps it takes before others may wait for it."""
        self.iteration = self._version = 0
        self.lags: list[int] = []
        self._picked: dict[str, VirtualBundle] = {}
        self._posted: collections.Counter[str] = collections.Counter()
        self.iterations: list[Iteration] = []
        """When each began and ended, in nanoseconds."""
        self._spans: list[Span] = []
        self._exchanges: list[_Exchange] = []

    def stand_for(self, replicas: float, crowds: Mapping[str, float], stretch: float) -> None:
        """Stand for so many replicas: it occupies so many times as much of each resource, and computes so many times
        as long where what it takes stands for several."""
        self._stands_for, self._crowds, self._stretch = replicas, crowds, stretch
        self._idle = self._resources(Cost(0.0, interpreter=1.0))

    def run(self, iterations: float) -> Process:
        """Train for so many iterations."""
        burst = self._costs.burst(self.schedule)
        while self.iteration < iterations:
            began = self._clock.now
            if burst is not None:
                yield Load(self._sampled(burst), self._resources(burst))
                step = self.schedule.steps[0]
                assert isinstance(step, Segment)
                self._spans.append(step.timeline_entry(_ns(began), _ns(self._clock.now), 1))
            else:
                yield from self._steps(self.schedule.steps)
                yield Load(self._costs.overheads.iteration * self._stretch, self._idle)
            lag = self.iteration - next(iter(self._picked.values())).version if self._picked else None
            self.iterations.append(Iteration(_ns(began), _ns(self._clock.now), self.iteration, 1, lag))
            self._picked.clear()
            self.iteration += 1

    def timeline(self) -> WorkerTimeline:
        """What it did and when."""
        last = max((iteration.end for iteration in self.iterations), default=0)
        crossings = map(_crossing, self._exchanges)
        return WorkerTimeline(
            self._program.fragment.name,
            self._program.worker(self.replica),
            tuple(self.iterations),
            tuple(span for span in self._spans if span.end <= last),
            tuple(crossing for crossing in crossings if crossing.end <= last),
        )

    def _steps(self, steps: Sequence[Step]) -> Process:
        for step in steps:
            began = self._clock.now
            if isinstance(step, (Segment, Host)):
                yield from self._compute(*self._price(step))
            elif isinstance(step, Put):
                yield from self._put(step.interface)
            elif isinstance(step, Take):
                yield from self._take(step.interface)
            else:
                yield from self._rounds(step)
            if not isinstance(step, Put):
                self._spans.append(step.timeline_entry(_ns(began), _ns(self._clock.now)))

    def _rounds(self, rounds: Rounds) -> Process:
        is_alone = not any(isinstance(step, (Put, Take)) for step in rounds.body)
        self._until_met = rounds.length if is_alone else 1
        for _ in range(rounds.length):
            yield from self._steps(rounds.body)
            yield from self._compute(Cost(self._costs.overheads.round * self._stretch, interpreter=1.0), self._idle)
        self._until_met = 1

    def _compute(self, cost: Cost, demands: Mapping[str, float]) -> Process:
        """Compute, at first with the interpreter of the process, if it is shared: no other thread gets it meanwhile."""
        seconds = self._sampled(cost)
        held = seconds * demands.get(INTERPRETER, 0.0)
        yield Load(held, demands, INTERPRETER)
        yield Load(seconds - held, demands)

    def _price(self, step: Segment | Host) -> tuple[Cost, Mapping[str, float]]:
        """What a step costs and occupies; looked up once."""
        if id(step) not in self._prices:
            if isinstance(step, Segment):
                cost = self._costs.segment(self.schedule, step)
            else:
                cost = self._costs.host(self._program, step)
            self._prices[id(step)] = cost.times(self._stretch), self._resources(cost)
        return self._prices[id(step)]

    def _resources(self, cost: Cost) -> Mapping[str, float]:
        """What computing occupies, with the replicas that it stands for."""
        demands = self._costs.resources(self._program, self.replica, cost)
        return {name: amount * self._crowds.get(name, 1.0) for name, amount in demands.items()}

    def _sampled(self, cost: Cost) -> float:
        """How long it takes this time; the slowest of those that this worker stands for."""
        if not cost.spread:
            return cost.seconds
        slowest = math.sqrt(2 * math.log(self._stands_for)) if self._stands_for > 1 else 0.0
        # What varies from step to step evens out before the others wait for it.
        deviation = self._random.gauss(0.0, 1.0) + slowest / math.sqrt(self._until_met)
        return max(cost.seconds * (1 + cost.spread * deviation), cost.seconds / 2)

    def _put(self, interface: Interface) -> Process:
        if interface.delivery.kind == "every":
            for channel in self._ports.outgoing.get(interface.key, ()):
                began = self._clock.now
                yield from channel.send(self._idle)
                self._note(began, interface, channel, sends=True)
            return
        consumer = interface.consumer
        self._posted[consumer] += 1
        if self._posted[consumer] < self._sizes[consumer]:
            return
        self._posted[consumer] = 0
        iteration = self.iteration
        if interface.delivery.kind == "reply":
            answered = self._picked[consumer]
            box, hop = self._ports.replies[consumer][answered.replica]
            iteration = answered.iteration
        else:
            box, hop = self._ports.posts[consumer]
        version = self.iteration if interface.delivery.kind == "latest" else self._version
        began = self._clock.now
        yield from box.post(VirtualBundle(version, self.replica, iteration), hop, self._idle)
        self._note(began, interface, box, sends=True)

    def _take(self, interface: Interface) -> Process:
        delivery = interface.delivery
        if delivery.kind != "every":
            yield from self._pick(interface)
            return
        if delivery.lag and self.iteration == 1:
            return  # the first values are used twice
        for channel in self._ports.incoming.get(interface.key, ()):
            began = self._clock.now
            yield from channel.receive(self._idle)
            self._note(began, interface, channel, sends=False)

    def _pick(self, interface: Interface) -> Process:
        producer, delivery = interface.producer, interface.delivery
        if producer in self._picked:
            return
        box, hop = self._ports.pickups[producer]
        began = self._clock.now
        while True:
            taken: list[VirtualBundle] = []
            yield from box.pick(hop, self._idle, taken)
            (bundle,) = taken
            if delivery.kind == "reply":
                if bundle.iteration != self.iteration:
                    continue
                break
            self._version = bundle.version
            is_fresh = delivery.max_lag is None or self.iteration - bundle.version <= delivery.max_lag
            if delivery.kind == "latest" or is_fresh:
                break
        self._picked[producer] = bundle
        if delivery.kind == "any":
            self.lags.append(self.iteration - bundle.version)
        self._note(began, interface, box, sends=False)

    def _note(self, began: float, interface: Interface, box: VirtualChannel | VirtualMailbox, sends: bool) -> None:
        self._exchanges.append(_Exchange(began, self._clock.now, interface, sends, box.fill()))


class _Exchange(NamedTuple):
    """A value that was sent or received, from one time to another, and how full the channel was then."""

    began: float
    ended: float
    interface: Interface
    sends: bool
    fill: float


def _crossing(exchange: _Exchange) -> Crossing:
    """The same as a timeline has it."""
    began, ended, interface, sends, fill = exchange
    value = interface.value
    part = Part(value.id, interface.name or str(value), str(value), value.bytes)
    peer = interface.consumer if sends else interface.producer
    between = f"{interface.producer} -> {interface.consumer}"
    return Crossing(_ns(began), _ns(ended), sends, peer, between, f"{between} {value.id}", "", (part,), fill)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
