"""Virtual time: processes that occupy shared resources or wait for each other, without computing anything."""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple


class Load(NamedTuple):
    """Work that takes `seconds` alone. While it runs it occupies that much of each resource; where more is asked for
    than there is, all that ask for it slow down alike."""

    seconds: float
    demands: Mapping[str, float]
    lock: str = ""
    """Held meanwhile: others that need it wait, and get it in the order in which they asked."""


class Signal:
    """What a process waits for; `VirtualClock.notify` wakes those that do."""

    def __init__(self) -> None:
        self.waiting: list[Process] = []


Process = Generator[Load | Signal, None, Any]
"""Yields what to do next: a load to run, or a signal to wait for."""


class _Running:
    """A load that runs: what was left of it at some time, and how fast it has run since."""

    __slots__ = ("end", "left", "load", "number", "process", "rate", "since")

    def __init__(self, process: Process, load: Load, number: int, now: float) -> None:
        self.process, self.load, self.number = process, load, number
        self.left, self.since = load.seconds, now
        self.rate, self.end = 0.0, float("inf")


class VirtualClock:
    """Runs processes on virtual time. `capacities` has the amount of each resource; others are unlimited.

    A load is looked at when it begins, when it ends, and when what it occupies becomes scarcer or less scarce: most of
    what a plan does shares nothing, and the time that a simulation takes is that of its events.
    """

    def __init__(self, capacities: Mapping[str, float]) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self._capacities = capacities
        self._ready: deque[Process] = deque()
        self._ends: list[tuple[float, int, _Running]] = []
        """When loads end, as a heap; those that have another end by now are skipped."""
        self._users: dict[str, dict[int, _Running]] = {}
        """By resource of which there is not more than enough for everyone, who occupies it."""
        self._slowdowns: dict[str, float] = {}
        self._changed: dict[str, None] = {}
        """Resources with another number of users than when the slowdowns were computed."""
        self._begun: list[_Running] = []
        """Loads whose rate is not known yet."""
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._held: dict[str, deque[tuple[Process, Load]]] = {}
        """Locks that are held, with who waits for them."""

    def start(self, process: Process) -> None:
        """Start a process, now."""
        self._ready.append(process)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function after so much time."""
        heapq.heappush(self._alarms, (self.now + seconds, next(self._numbers), call))

    def notify(self, signal: Signal) -> None:
        """Wake all processes that wait for a signal."""
        self._ready.extend(signal.waiting)
        signal.waiting.clear()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until nothing happens any more, or `until()`."""
        while not until():
            while self._ready:
                self._advance(self._ready.popleft())
            if not self._pass_time():
                return

    def _advance(self, process: Process) -> None:
        for request in process:
            if isinstance(request, Signal):
                request.waiting.append(process)
                return
            if request.seconds <= 0:
                continue
            if request.lock in self._held:
                self._held[request.lock].append((process, request))
            else:
                self._begin(process, request)
            return

    def _begin(self, process: Process, load: Load) -> None:
        if load.lock:
            self._held.setdefault(load.lock, deque())
        running = _Running(process, load, next(self._numbers), self.now)
        self._begun.append(running)
        for resource, amount in load.demands.items():
            if amount and resource in self._capacities:
                self._users.setdefault(resource, {})[running.number] = running
                self._changed[resource] = None

    def _end(self, running: _Running) -> None:
        load = running.load
        for resource, amount in load.demands.items():
            if amount and resource in self._capacities:
                del self._users[resource][running.number]
                self._changed[resource] = None
        self._ready.append(running.process)
        if load.lock and self._held[load.lock]:
            self._begin(*self._held[load.lock].popleft())
        elif load.lock:
            del self._held[load.lock]

    def _pass_time(self) -> bool:
        """Go on to what happens next; whether anything does."""
        self._set_rates()
        while self._ends and self._ends[0][0] != self._ends[0][2].end:
            heapq.heappop(self._ends)
        if not self._ends and not self._alarms:
            return False
        last = self.now
        self.now = min(heap[0][0] for heap in (self._ends, self._alarms) if heap)
        # What ends together may differ by rounding. It goes on in the order in which it began.
        limit = self.now + max((self.now - last) * 1e-12, self.now * 1e-15)
        ended: list[_Running] = []
        while self._ends and self._ends[0][0] <= limit:
            end, _, running = heapq.heappop(self._ends)
            if end == running.end:
                running.end = float("inf")  # another entry of it may have the same end
                ended.append(running)
        for running in sorted(ended, key=lambda running: running.number):
            self._end(running)
        while self._alarms and self._alarms[0][0] <= limit:
            heapq.heappop(self._alarms)[2]()
        return True

    def _set_rates(self) -> None:
        """How fast every load runs, compared to running alone; of those for which that has changed, when they end."""
        concerned = {running.number: running for running in self._begun}
        for resource in self._changed:
            users = self._users[resource]
            asked = sum(running.load.demands[resource] for running in users.values())
            slowdown = min(1.0, self._capacities[resource] / asked) if asked else 1.0
            if slowdown != self._slowdowns.get(resource, 1.0):
                self._slowdowns[resource] = slowdown
                concerned.update(users)
        self._begun.clear()
        self._changed.clear()
        for running in concerned.values():
            demands = running.load.demands.items()
            rate = min((self._slowdowns.get(resource, 1.0) for resource, amount in demands if amount), default=1.0)
            if rate != running.rate:
                running.left -= (self.now - running.since) * running.rate
                running.since, running.rate = self.now, rate
                running.end = self.now + running.left / rate
                heapq.heappush(self._ends, (running.end, running.number, running))
