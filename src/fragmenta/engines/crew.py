"""The processes of a cluster engine: started, connected to each other, watched."""

import functools
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from fragmenta.coordinator.fingerprint import fingerprint
from fragmenta.engines.base import Placed, Setup
from fragmenta.engines.control import Connection, FailedError, Inbox, LostError, Peer
from fragmenta.engines.dispatch import links
from fragmenta.engines.job import pickled_job
from fragmenta.engines.launcher import Launcher
from fragmenta.engines.replica import hosts_environments, names, places
from fragmenta.envs import HostEnvironment
from fragmenta.errors import ConfigError
from fragmenta.worker.channels.hello import accept_hello

STARTING_SECONDS = 120.0
"""How long a process may take to start, and a fragment to compile, unless the deadline is longer."""
BEAT_SECONDS = 1.0
"""How often processes give signs of life at least."""
RESTING_SECONDS = 5.0
"""How long a process may take to come to rest after another one was lost; one that does not is replaced as well."""
ENDING_SECONDS = 1.0
"""How long it may take until it is known how a process ended that hung up, or that another one fails with was lost."""


class Crew:
    """One process per fragment replica, by its number in `places`."""

    def __init__(self, setup: Setup, launcher: Launcher) -> None:
        self.places = places(setup.plan)
        self.names = names(setup.plan)
        self.inbox: Inbox = queue.SimpleQueue()
        self.peers: dict[int, Peer] = {}
        self.patience = max(STARTING_SECONDS, setup.deadline)
        """How long a process may take to start, to compile, or to make its connections."""
        self._setup, self._launcher, self._links = setup, launcher, links(setup.plan)
        self._beat = min(BEAT_SECONDS, setup.options.watchdog / 4)
        self._fingerprint = fingerprint(setup.plan, setup.algorithm, setup.env)
        self._token, self._job = secrets.token_bytes(32), pickled_job(setup)
        self._arrived, self._closed = threading.Condition(), threading.Event()
        self._listener = socket.create_server((launcher.address, 0))
        self._threads = [
            threading.Thread(target=self._accept, name="fragmenta-accepts", daemon=True),
            threading.Thread(target=self._watch, name="fragmenta-watches", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_closed(self) -> bool:
        """Whether all has come to an end."""
        return self._closed.is_set()

    def __len__(self) -> int:
        return len(self.places)

    def start(self, which: Iterable[int]) -> None:
        """Start these, all at once, in place of those that were there; let them join their groups and compile."""
        which = list(which)
        before = {i: self.peers.get(i) for i in which}
        address = self._listener.getsockname()[:2]
        for i in which:
            self._launcher.start(i, self._job, address, self._token)
        end = time.monotonic() + self.patience
        with self._arrived:
            while missing := [i for i in which if self.peers.get(i) is before[i]]:
                for i in missing:
                    if how := self._launcher.ended(i):
                        raise LostError(f"{self.names[i]} {how} before it was ready")
                if time.monotonic() > end:
                    raise LostError(f"{self.names[missing[0]]} did not start within {self.patience:g} s")
                self._arrived.wait(0.2)
        self._prepare(which)

    def _prepare(self, which: list[int]) -> None:
        groups = [group for group in self.groups() if group[0] in which]
        led = self.ask({group[0]: {} for group in groups}, "lead", self.patience)
        details = {}
        for i in which:
            group = next((g for g in groups if i in g), None)
            details[i] = {
                "group": group and {**led[group[0]][0], "count": len(group), "index": group.index(i)},
                **self._cores(i),
            }
        for i, (answer, _) in self.ask(details, "prepare", self.patience).items():
            if answer["plan"] != self._fingerprint:
                raise ConfigError(
                    f"{self.names[i]} on {self.peers[i].hello['host']} makes something else of the same algorithm: its "
                    f"code or its version of JAX is not the one here"
                )
            self.peers[i].hello |= {"device": answer["device"], "holds_up": answer["holds_up"]}
            self.peers[i].is_ready = True
        if self._setup.placed:
            self._setup.placed([self._placed(i) for i in which])

    def connect(self, whose: Iterable[int] | None = None) -> None:
        """Make all connections anew, or those of some."""
        ways = [
            (link, self._index(link.producer, link.source), self._index(link.consumer, link.target))
            for link in self._links
        ]
        if whose is not None:
            some = set(whose)
            ways = [(link, a, b) for link, a, b in ways if {a, b} & some]
        opened: dict[int, dict[str, bool]] = {}
        for link, a, b in ways:
            opened.setdefault(b, {})[link.name] = self._share_memory(a, b)
        found = self.ask({b: {"links": names} for b, names in opened.items()}, "open", self.patience)
        addresses: dict[int, dict[str, Any]] = {}
        for link, a, b in ways:
            addresses.setdefault(a, {})[link.name] = found[b][0]["addresses"][link.name]
        asked = {a: {"addresses": known} for a, known in addresses.items()}
        unreached = {a: answer["unreached"] for a, (answer, _) in self.ask(asked, "connect", self.patience).items()}
        for link, a, b in ways:
            if unreached[a] == link.name:
                raise self._loss([b]) or LostError(f"{self.names[b]} could not be reached by {self.names[a]}")

    def ask(self, details: dict[int, dict[str, Any]], what: str, timeout: float) -> dict[int, Any]:
        """The same order to several at once; their answers."""
        numbers = {i: (self.peers[i], self.peers[i].order(what, **more)) for i, more in details.items()}
        return {i: peer.answer(number, timeout) for i, (peer, number) in numbers.items()}

    def bring_to_rest(self, failure: LostError | FailedError) -> list[int]:
        """Stop everybody, and end those that are lost, that failed, that were not ready yet, that do not stop, or that
        met with one of these. The numbers of the ended ones.
        """
        failed = failure.worker if isinstance(failure, FailedError) else ""
        peers = list(self.peers.items())
        going = {i for i, peer in peers if peer.is_ready and not peer.lost and self.names[i] != failed}
        lost = set(range(len(self))) - going
        lost |= self._meeting(lost)
        for i in lost:
            self.end(i)
        resting = {i: self.peers[i] for i in range(len(self)) if i not in lost}
        for peer in resting.values():
            peer.tell("stop")
        numbers = {i: peer.order("rest") for i, peer in resting.items()}
        for i, number in numbers.items():
            try:
                resting[i].answer(number, max(RESTING_SECONDS, self.longest_step(i)))
            except LostError:
                lost.add(i)
        lost |= self._meeting(lost)
        for i in lost:
            self.end(i)
        return sorted(lost)

    def _meeting(self, lost: set[int]) -> set[int]:
        """Those that meet with one of these: a group of JAX processes cannot be joined again."""
        return {i for group in self.groups() if lost & set(group) for i in group}

    def cause(self, failure: LostError | FailedError) -> LostError | FailedError:
        """Whoever meets with a process that is lost fails as well; then the loss, which may be known only later."""
        if not isinstance(failure, FailedError):
            return failure
        met = next((g for g in self.groups() if failure.worker in [self.names[i] for i in g]), [])
        return self._loss(met) or failure

    def _loss(self, which: list[int]) -> LostError | None:
        """That of one of these, which may be known only a little later; None if there is none."""
        end = time.monotonic() + ENDING_SECONDS
        while which and time.monotonic() < end:
            for peer in (self.peers[i] for i in which if i in self.peers):
                if peer.lost:
                    return LostError(f"{peer.name} {peer.lost}")
            time.sleep(0.02)
        return None

    def end(self, i: int) -> None:
        """Kill a process."""
        if i in self.peers:
            self.peers[i].lose("was ended")
        self._launcher.kill(i)

    def groups(self) -> list[list[int]]:
        """Processes that meet in collectives."""
        found: dict[str, list[int]] = {}
        for i, (program, _) in enumerate(self.places):
            if program.together and program.replicas > 1:
                found.setdefault(program.fragment.name, []).append(i)
        return list(found.values())

    def close(self) -> None:
        """End all processes."""
        self._closed.set()
        for peer in list(self.peers.values()):
            peer.lose("was ended")
        # A thread that accepts would keep the port until somebody connects.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()
        self._launcher.close()
        for peer in list(self.peers.values()):
            peer.forget()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._welcome, args=(sock,), name="fragmenta-welcomes", daemon=True).start()

    def _welcome(self, sock: socket.socket) -> None:
        try:
            kind, _, number = accept_hello(sock, self._token).partition(".")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection, index = Connection(sock), int(number)
            if kind != "member" or not 0 <= index < len(self):
                raise ValueError(kind)
            hello, _ = connection.receive()
        except (OSError, EOFError, ValueError):
            sock.close()
            return
        with self._arrived:
            how = functools.partial(self._how_it_ended, index)
            peer = self.peers[index] = Peer(index, self.names[index], connection, hello, self.inbox, how)
            self._arrived.notify_all()
        peer.tell("live", every=self._beat)

    def _watch(self) -> None:
        """One that gives no sign of life is killed, so that others do not wait for it."""
        while not self._closed.wait(self._beat):
            for i, peer in list(self.peers.items()):
                if peer.lost:
                    continue
                held_up = self.longest_step(i) if peer.hello.get("holds_up") else 0.0
                silent = peer.silent
                if silent > max(self._setup.options.watchdog, held_up):
                    last = f"; it last said that it {peer.doing}" if peer.doing else ""
                    peer.lose(f"has given no sign of life for {silent:.0f} s{last}")
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
        """How long a step of a process' environments on the host may take; 0 if it has none."""
        env = self._setup.env
        if not isinstance(env, HostEnvironment) or not hosts_environments(self.places[i][0]):
            return 0.0
        return env.pool.options.timeout

    def _cores(self, i: int) -> dict[str, int | None]:
        """How many cores a process has for its environments, an equal share of its machine's; if it is one, which."""
        program, replica = self.places[i]
        if not hosts_environments(program):
            return {"cores": 1, "core": None}
        neighbours = [j for j, (p, _) in enumerate(self.places) if hosts_environments(p) and self._share_memory(i, j)]
        share = max(1, self.peers[i].hello["cores"] // len(neighbours))
        return {"cores": share, "core": replica if share == 1 else None}

    def _share_memory(self, a: int, b: int) -> bool:
        return self.peers[a].hello["machine"] == self.peers[b].hello["machine"]

    def _index(self, fragment: str, replica: int) -> int:
        return next(i for i, (p, r) in enumerate(self.places) if (p.fragment.name, r) == (fragment, replica))

    def _placed(self, i: int) -> Placed:
        hello = self.peers[i].hello
        return Placed(self.names[i], hello["node"], hello["host"], hello["device"], hello["pid"])
