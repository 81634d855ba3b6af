"""Starts, connects and monitors the processes of a cluster engine."""

import functools
import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

from fragmenta.coordinator.fingerprint import fingerprint
from fragmenta.engines.base import ProcessLocation, Setup
from fragmenta.engines.control import Connection, FailedError, Inbox, LostError, Peer
from fragmenta.engines.dispatch import routes
from fragmenta.engines.job import pickled_job
from fragmenta.engines.launcher import Launcher
from fragmenta.engines.reception import Reception
from fragmenta.engines.replica import hosts_environments, names, places
from fragmenta.errors import ConfigError

STARTING_SECONDS = 120.0
"""How long a process may take to start, and a fragment to compile, unless the deadline is longer."""
BEAT_SECONDS = 1.0
"""Maximum interval between heartbeats."""
RESTING_SECONDS = 5.0
"""How long a process may take to stop after another one was lost; if it takes longer, it is replaced as well."""
GUARD_SECONDS = 10.0
"""By how much a process may be silent for longer than a step may take: its guard says first which environment it is."""
ENDING_SECONDS = 1.0
"""How long to wait for the exit status of a process that disconnected, or for the loss behind a peer's failure."""


class Crew:
    """One process per fragment replica, by its index in `places`."""

    def __init__(self, setup: Setup, launcher: Launcher) -> None:
        self.places = places(setup.plan)
        self.names = names(setup.plan)
        self.inbox: Inbox = queue.SimpleQueue()
        self.peers: dict[int, Peer] = {}
        self.patience = max(STARTING_SECONDS, setup.deadline)
        """How long a process may take to start, to compile, or to connect."""
        self._setup, self._launcher, self._routes = setup, launcher, routes(setup.plan)
        self._beat = min(BEAT_SECONDS, setup.options.watchdog / 4)
        self._fingerprint = fingerprint(setup.plan, setup.algorithm, setup.env)
        self._job = pickled_job(setup)
        self._arrival, self._closed = threading.Condition(), threading.Event()
        self._reception = Reception(launcher.address, len(self.places), self._welcome)
        self._watcher = threading.Thread(target=self._watch, name="fragmenta-watches", daemon=True)
        self._watcher.start()

    @property
    def is_closed(self) -> bool:
        """Whether the crew is closed."""
        return self._closed.is_set()

    def __len__(self) -> int:
        return len(self.places)

    def start(self, indices: Iterable[int]) -> None:
        """Start or replace these processes, all at once; they join their distributed groups and compile."""
        indices = list(indices)
        before = {i: self.peers.get(i) for i in indices}
        for i in indices:
            self._launcher.start(i, self._job, self._reception.address, self._reception.token)
        end = time.monotonic() + self.patience
        with self._arrival:
            while missing := [i for i in indices if self.peers.get(i) is before[i]]:
                for i in missing:
                    if how := self._launcher.ended(i):
                        raise LostError(f"{self.names[i]} {how} before it was ready")
                if time.monotonic() > end:
                    raise LostError(f"{self.names[missing[0]]} did not start within {self.patience:g} s")
                self._arrival.wait(0.2)
        self._prepare(indices)

    def _prepare(self, indices: list[int]) -> None:
        groups = [group for group in self.groups() if group[0] in indices]
        leads = self.ask({group[0]: {} for group in groups}, "lead", self.patience)
        details = {}
        for i in indices:
            group = next((g for g in groups if i in g), None)
            details[i] = {
                "group": group and {**leads[group[0]][0], "count": len(group), "index": group.index(i)},
                **self._cores(i),
            }
        for i, (answer, _) in self.ask(details, "prepare", self.patience).items():
            if answer["plan"] != self._fingerprint:
                raise ConfigError(
                    f"{self.names[i]} on {self.peers[i].hello['host']} builds a different plan: its code or its JAX "
                    f"version differs from the one here, install the same on every machine"
                )
            self.peers[i].hello |= {"device": answer["device"], "holds_up": answer["holds_up"]}
            self.peers[i].is_ready = True
        if self._setup.placed:
            self._setup.placed([self._location(i) for i in indices])

    def connect(self, indices: Iterable[int] | None = None) -> None:
        """Set up all connections again, or those of some processes."""
        ways = [
            (route, self._index(route.producer, route.source), self._index(route.consumer, route.target))
            for route in self._routes
        ]
        if indices is not None:
            chosen = set(indices)
            ways = [(route, a, b) for route, a, b in ways if {a, b} & chosen]
        receivers: dict[int, dict[str, bool]] = {}
        for route, a, b in ways:
            receivers.setdefault(b, {})[route.name] = self._shares_memory(a, b)
        answers = self.ask({b: {"routes": names} for b, names in receivers.items()}, "open", self.patience)
        addresses: dict[int, dict[str, Any]] = {}
        for route, a, b in ways:
            addresses.setdefault(a, {})[route.name] = answers[b][0]["addresses"][route.name]
        orders = {a: {"addresses": targets} for a, targets in addresses.items()}
        unreached = {a: answer["unreached"] for a, (answer, _) in self.ask(orders, "connect", self.patience).items()}
        for route, a, b in ways:
            if unreached[a] == route.name:
                raise self._loss([b]) or LostError(f"{self.names[b]} could not be reached by {self.names[a]}")

    def ask(self, details: dict[int, dict[str, Any]], what: str, timeout: float) -> dict[int, Any]:
        """Send the same order to several processes at once; returns their answers."""
        numbers = {i: (self.peers[i], self.peers[i].order(what, **fields)) for i, fields in details.items()}
        return {i: peer.answer(number, timeout) for i, (peer, number) in numbers.items()}

    def bring_to_rest(self, failure: LostError | FailedError) -> list[int]:
        """Stop all processes. Kill those that are lost, failed, not ready yet or do not stop, and their distributed
        groups. Returns the indices of the killed ones.
        """
        lost = set(range(len(self))) - self.healthy(failure)
        lost |= self._group_members(lost)
        for i in lost:
            self.end(i)
        lost |= self.rest([i for i in range(len(self)) if i not in lost])
        lost |= self._group_members(lost)
        for i in lost:
            self.end(i)
        return sorted(lost)

    def healthy(self, failure: LostError | FailedError) -> set[int]:
        """The processes that are there, ready, and not those that failed."""
        failed = failure.worker if isinstance(failure, FailedError) else ""
        peers = list(self.peers.items())
        return {i for i, peer in peers if peer.is_ready and not peer.lost and self.names[i] != failed}

    def rest(self, indices: Iterable[int]) -> set[int]:
        """Stop these processes; kill those that do not stop, and return their indices."""
        resting = {i: self.peers[i] for i in indices}
        for peer in resting.values():
            peer.tell("stop")
        numbers = {i: peer.order("rest") for i, peer in resting.items()}
        lost = set[int]()
        for i, number in numbers.items():
            try:
                resting[i].answer(number, max(RESTING_SECONDS, self.longest_step(i)))
            except LostError:
                lost.add(i)
                self.end(i)
        return lost

    def _group_members(self, lost: set[int]) -> set[int]:
        """All members of the distributed groups of these processes: a group cannot be joined again."""
        return {i for group in self.groups() if lost & set(group) for i in group}

    def cause(self, failure: LostError | FailedError) -> LostError | FailedError:
        """The root cause: the loss of a member of the failed process' distributed group, if any, else the failure."""
        if not isinstance(failure, FailedError):
            return failure
        group = next((g for g in self.groups() if failure.worker in [self.names[i] for i in g]), [])
        return self._loss(group) or failure

    def _loss(self, indices: list[int]) -> LostError | None:
        """The loss of one of these processes, which may be detected only a little later; None if there is none."""
        end = time.monotonic() + ENDING_SECONDS
        while indices and time.monotonic() < end:
            for peer in (self.peers[i] for i in indices if i in self.peers):
                if peer.lost:
                    return LostError(f"{peer.name} {peer.lost}")
            time.sleep(0.02)
        return None

    def end(self, i: int) -> None:
        """Kill a process."""
        if i in self.peers:
            self.peers[i].lose("was terminated")
        self._launcher.kill(i)

    def groups(self) -> list[list[int]]:
        """The distributed groups: processes that take part in the same collectives."""
        groups: dict[str, list[int]] = {}
        for i, (program, _) in enumerate(self.places):
            if program.together and program.replicas > 1:
                groups.setdefault(program.fragment.name, []).append(i)
        return list(groups.values())

    def close(self) -> None:
        """Terminate all processes."""
        self._closed.set()
        for peer in list(self.peers.values()):
            peer.lose("was terminated")
        self._reception.close()
        self._watcher.join()
        self._launcher.close()
        for peer in list(self.peers.values()):
            peer.forget()

    def _welcome(self, index: int, connection: Connection, hello: dict[str, Any]) -> None:
        with self._arrival:
            how = functools.partial(self._how_it_ended, index)
            peer = self.peers[index] = Peer(index, self.names[index], connection, hello, self.inbox, how)
            self._arrival.notify_all()
        peer.tell("live", every=self._beat)

    def _watch(self) -> None:
        """Kill processes without a heartbeat, so that others do not wait for them."""
        while not self._closed.wait(self._beat):
            for i, peer in list(self.peers.items()):
                if peer.lost:
                    continue
                step_limit = self.longest_step(i) + GUARD_SECONDS if peer.hello.get("holds_up") else 0.0
                silent = peer.silent
                if silent > max(self._setup.options.watchdog, step_limit):
                    last = f"; last activity: {peer.doing}" if peer.doing else ""
                    peer.lose(f"has sent no heartbeat for {silent:.0f} s{last}")
                    self._launcher.kill(i)
                elif how := self._launcher.ended(i):
                    peer.lose(how)

    def _how_it_ended(self, i: int) -> str:
        end = time.monotonic() + ENDING_SECONDS
        while not self._closed.is_set() and time.monotonic() < end:
            if how := self._launcher.ended(i):
                return how
            time.sleep(0.02)
        return "closed its connection"

    def longest_step(self, i: int) -> float:
        """Time limit of a step of a process' host environments; 0 if it has none."""
        return self._setup.env.step_timeout if hosts_environments(self.places[i][0]) else 0.0

    def _cores(self, i: int) -> dict[str, int | None]:
        """The number of cores for a process' environments, an equal share of its machine; which core, if only one."""
        program, replica = self.places[i]
        if not hosts_environments(program):
            return {"cores": 1, "core": None}
        neighbours = [j for j, (p, _) in enumerate(self.places) if hosts_environments(p) and self._shares_memory(i, j)]
        share = max(1, self.peers[i].hello["cores"] // len(neighbours))
        return {"cores": share, "core": replica if share == 1 else None}

    def _shares_memory(self, a: int, b: int) -> bool:
        return self.peers[a].hello["machine"] == self.peers[b].hello["machine"]

    def _index(self, fragment: str, replica: int) -> int:
        return next(i for i, (p, r) in enumerate(self.places) if (p.fragment.name, r) == (fragment, replica))

    def _location(self, i: int) -> ProcessLocation:
        hello = self.peers[i].hello
        return ProcessLocation(self.names[i], hello["node"], hello["host"], hello["device"], hello["pid"])
