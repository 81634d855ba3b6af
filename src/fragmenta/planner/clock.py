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


class VirtualClock:
    """Runs processes on virtual time. `capacities` has the amount of each resource; others are unlimited."""

    def __init__(self, capacities: Mapping[str, float]) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self._capacities = capacities
        self._ready: deque[Process] = deque()
        self._loads: dict[Process, tuple[Load, list[float]]] = {}
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._rates: dict[Process, float] = {}
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
            if not self._loads and not self._alarms:
                return
            self._pass_time()

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
        self._loads[process] = load, [load.seconds]
        self._rates = {}

    def _end(self, process: Process) -> None:
        load, _ = self._loads.pop(process)
        self._rates = {}
        self._ready.append(process)
        if load.lock and self._held[load.lock]:
            self._begin(*self._held[load.lock].popleft())
        elif load.lock:
            del self._held[load.lock]

    def _pass_time(self) -> None:
        if not self._rates:
            self._rates = self._shared_rates()
        rates = self._rates
        ends = [(left[0] / rates[process], process) for process, (_, left) in self._loads.items()]
        alarm = self._alarms[0][0] - self.now if self._alarms else float("inf")
        seconds = min(alarm, min((end for end, _ in ends), default=float("inf")))
        self.now += seconds
        for end, process in ends:
            if end <= seconds * (1 + 1e-12):
                self._end(process)
            else:
                self._loads[process][1][0] -= seconds * rates[process]
        while self._alarms and self._alarms[0][0] <= self.now * (1 + 1e-15):
            heapq.heappop(self._alarms)[2]()

    def _shared_rates(self) -> dict[Process, float]:
        """How fast every load runs, compared to running alone."""
        asked: dict[str, float] = {}
        for load, _ in self._loads.values():
            for resource, amount in load.demands.items():
                asked[resource] = asked.get(resource, 0.0) + amount
        slowdown = {
            resource: min(1.0, self._capacities.get(resource, float("inf")) / amount)
            for resource, amount in asked.items()
            if amount
        }
        return {
            process: min((slowdown.get(resource, 1.0) for resource in load.demands), default=1.0)
            for process, (load, _) in self._loads.items()
        }
