"""Mailboxes between fragments that do not wait for each other: all values of an iteration change hands at once."""

import collections
import threading
import time
from typing import Any, NamedTuple, Protocol

from fragmenta.graph import Delivery
from fragmenta.worker.channels.memory import ClosedError


class Bundle(NamedTuple):
    """All that one replica hands over in an iteration, by interface, and the version of the parameters it is from."""

    values: dict[tuple[int, str], Any]
    version: int
    replica: int
    iteration: int
    """That of the replica, which tells its bundles apart."""


class Mailbox(Protocol):
    """Where replicas of one fragment leave bundles for another."""

    def post(self, bundle: Bundle, timeout: float) -> None:
        """Leave a bundle. TimeoutError past the time, ClosedError once closed."""
        ...

    def pick(self, timeout: float) -> Bundle:
        """A bundle; wait while there is none. TimeoutError past the time, ClosedError once closed."""
        ...

    def fill(self) -> float:
        """The share of its places that are taken, from 0 to 1; a glance that waits for nobody."""
        ...

    def end(self) -> None:
        """Nobody will pick again: posting neither waits nor keeps anything from now on."""
        ...

    def close(self) -> None:
        """Wake everyone who waits, and let nobody wait again."""
        ...


class _Box:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._losses: collections.Counter[int] = collections.Counter()
        """How often each replica was lost."""

    def end(self) -> None:
        """Let posting succeed at once and keep nothing."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Wake everyone."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def lose(self, replica: int) -> None:
        """A replica is gone: who waits to leave a bundle for it gets a ClosedError. Others, and a new one, go on."""
        with self._changed:
            self._losses[replica] += 1
            self._changed.notify_all()

    def _wait(self, ready: Any, timeout: float) -> None:
        """Wait until `ready()`, with the lock held."""
        end = time.monotonic() + timeout
        while not self._closed and not ready():
            if time.monotonic() >= end:
                raise TimeoutError
            self._changed.wait(min(end - time.monotonic(), threading.TIMEOUT_MAX))
        if self._closed:
            raise ClosedError


class LatestMailbox(_Box):
    """Keeps the newest bundle only. Whoever picks waits for the very first and for none after it."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: Bundle | None = None
        self._is_new = False
        self._posted = 0

    def post(self, bundle: Bundle, timeout: float) -> None:
        """Replace what was there."""
        with self._changed:
            if self._closed:
                raise ClosedError
            self._newest, self._is_new = bundle, True
            self._posted += 1
            self._changed.notify_all()

    def pick(self, timeout: float) -> Bundle:
        """The newest bundle, which stays for others."""
        with self._changed:
            self._wait(lambda: self._newest is not None, timeout)
            assert self._newest is not None
            self._is_new = False
            return self._newest

    def pick_newer(self, seen: int, timeout: float) -> tuple[int, Bundle]:
        """The newest bundle and its number, which begins at 1; wait while that is not beyond `seen`."""
        with self._changed:
            self._wait(lambda: self._posted > seen, timeout)
            assert self._newest is not None
            self._is_new = False
            return self._posted, self._newest

    def fill(self) -> float:
        """1 until somebody has picked the newest bundle."""
        return float(self._is_new)


class AnyMailbox(_Box):
    """First come, first served. A replica whose bundle was not picked yet waits before it leaves another.

    If bundles must not grow old, it waits for its own to be picked: what it makes meanwhile would be too old.
    """

    def __init__(self, must_be_fresh: bool) -> None:
        super().__init__()
        self._must_be_fresh = must_be_fresh
        self._bundles: collections.OrderedDict[int, Bundle] = collections.OrderedDict()
        self._replicas: set[int] = set()

    def post(self, bundle: Bundle, timeout: float) -> None:
        """Queue behind the other replicas."""
        with self._changed:
            self._replicas.add(bundle.replica)
            losses = self._losses[bundle.replica]
            self._wait_for_place(bundle.replica, losses, timeout)
            if not self._ended:
                self._bundles[bundle.replica] = bundle
                self._changed.notify_all()
            if self._must_be_fresh:
                self._wait_for_place(bundle.replica, losses, timeout)

    def pick(self, timeout: float) -> Bundle:
        """The oldest bundle."""
        with self._changed:
            self._wait(lambda: self._bundles, timeout)
            _, bundle = self._bundles.popitem(last=False)
            self._changed.notify_all()
            return bundle

    def _wait_for_place(self, replica: int, losses: int, timeout: float) -> None:
        def is_lost() -> bool:
            return self._losses[replica] != losses

        self._wait(lambda: self._ended or replica not in self._bundles or is_lost(), timeout)
        if is_lost() and not self._ended:
            raise ClosedError

    def fill(self) -> float:
        """Bundles that wait, of one for each replica that ever left one."""
        return len(self._bundles) / max(len(self._replicas), 1)


def mailbox(delivery: Delivery) -> Mailbox:
    """The mailbox for a delivery that is not `every`."""
    return LatestMailbox() if delivery.kind == "latest" else AnyMailbox(delivery.max_lag is not None)
