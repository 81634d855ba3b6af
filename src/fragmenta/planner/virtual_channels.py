"""Channels and mailboxes of virtual workers: as those of real ones, but nothing is carried."""

import collections
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fragmenta.planner.clock import Load, Process, Signal, VirtualClock
from fragmenta.planner.costs import Hop


class VirtualChannel:
    """A bounded queue from one worker to another."""

    def __init__(self, clock: VirtualClock, hop: Hop, capacity: int = 2) -> None:
        self.hop, self._clock = hop, clock
        self._capacity, self._slots, self._arrived = capacity, capacity, 0
        self._changed = Signal()

    def send(self, holds: Mapping[str, float]) -> Process:
        """Send a value; waits while the channel is full. `holds` is what the sender occupies."""
        while not self._slots:
            yield self._changed
        self._slots -= 1
        yield Load(self.hop.send, holds)
        self._clock.start(carried(self.hop, self._clock, self._arrive))

    def receive(self, holds: Mapping[str, float]) -> Process:
        """Receive the next value; waits while there is none."""
        while not self._arrived:
            yield self._changed
        self._arrived -= 1
        self._slots += 1
        self._clock.notify(self._changed)
        yield Load(self.hop.receive, holds)

    def fill(self) -> float:
        """The share of occupied slots."""
        return self._arrived / self._capacity

    def _arrive(self) -> None:
        self._arrived += 1
        self._clock.notify(self._changed)


class VirtualBundle(NamedTuple):
    """What a worker posts in an iteration, without the values."""

    version: int
    replica: int
    iteration: int


class VirtualMailbox:
    """A mailbox of one kind of delivery, with the rules of `worker.channels.mailbox`."""

    def __init__(self, clock: VirtualClock, kind: str, must_be_fresh: bool) -> None:
        self._clock, self._kind, self._must_be_fresh = clock, kind, must_be_fresh
        self._queue: collections.OrderedDict[int, VirtualBundle] = collections.OrderedDict()
        self._newest: VirtualBundle | None = None
        self._is_new = False
        self._changed = Signal()
        self._replicas: set[int] = set()

    def post(self, bundle: VirtualBundle, hop: Hop, holds: Mapping[str, float]) -> Process:
        """Post a bundle; under `any`, waits while this replica's previous one is not picked."""
        yield Load(hop.send, holds)
        self._replicas.add(bundle.replica)
        while self._kind == "any" and bundle.replica in self._queue:
            yield self._changed
        if self._kind == "any":
            self._queue[bundle.replica] = bundle
            self._clock.start(carried(hop, self._clock, lambda: self._clock.notify(self._changed)))
            while self._must_be_fresh and bundle.replica in self._queue:
                yield self._changed
        else:
            self._clock.start(carried(hop, self._clock, lambda: self._renew(bundle)))

    def pick(self, hop: Hop, holds: Mapping[str, float], into: list[VirtualBundle]) -> Process:
        """Pick a bundle, as the kind of delivery has it, and append it to `into`."""
        while not self._is_ready():
            yield self._changed
        if self._kind == "any":
            bundle = self._queue.popitem(last=False)[1]
        else:
            assert self._newest is not None
            bundle = self._newest
        self._is_new = False
        self._clock.notify(self._changed)
        yield Load(hop.receive, holds)
        into.append(bundle)

    def fill(self) -> float:
        """How full it is, from 0 to 1."""
        return len(self._queue) / max(len(self._replicas), 1) if self._kind == "any" else float(self._is_new)

    def _is_ready(self) -> bool:
        if self._kind == "any":
            return bool(self._queue)
        return self._is_new if self._kind == "reply" else self._newest is not None

    def _renew(self, bundle: VirtualBundle) -> None:
        self._newest, self._is_new = bundle, True
        self._clock.notify(self._changed)


def carried(hop: Hop, clock: VirtualClock, arrive: Callable[[], None]) -> Process:
    """The way of a message: it takes its latency, and its bytes take their time on what messages share."""
    if hop.bandwidth < float("inf"):
        yield Load(hop.bytes / hop.bandwidth, hop.shared)
    clock.later(hop.latency, arrive)
