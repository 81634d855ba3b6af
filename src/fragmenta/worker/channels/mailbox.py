"""Mailboxes between fragments that do not wait for each other: all values of an iteration are delivered at once."""

import collections
import threading
import time
from typing import Any, NamedTuple, Protocol

from fragmenta.graph import Delivery
from fragmenta.worker.channels.memory import ClosedError


class Bundle(NamedTuple):
    """All values that one replica posts in an iteration, by interface, with the version of the parameters behind it."""

    values: dict[tuple[int, str], Any]
    version: int
    replica: int
    iteration: int
    """The replica's own iteration, which identifies the bundle."""


class Mailbox(Protocol):
    """Where replicas of one fragment post bundles for another fragment."""

    def post(self, bundle: Bundle, timeout: float) -> None:
        """Post a bundle. TimeoutError after `timeout` seconds, ClosedError once closed."""
        ...

    def pick(self, timeout: float) -> Bundle:
        """A bundle; waits while there is none. TimeoutError after `timeout` seconds, ClosedError once closed, or once
        ended if there is none."""
        ...

    def fill(self) -> float:
        """The share of occupied slots, from 0 to 1; never blocks, so it may be out of date."""
        ...

    def end(self) -> None:
        """The learner is finished: from now on, posts return at once and are discarded."""
        ...

    def close(self) -> None:
        """Wake all waiting threads; later waits fail at once."""
        ...


class _Box:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._losses: collections.Counter[int] = collections.Counter()
        """How often each replica was lost."""

    def end(self) -> None:
        """Make posts return at once, and discard them."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def lose(self, replica: int) -> None:
        """A replica died: its pending posts raise ClosedError. Other replicas, and its replacement, continue."""
        with self._changed:
            self._losses[replica] += 1
            self._changed.notify_all()

    def _wait(self, ready: Any, timeout: float) -> None:
        """Wait until `ready()`; call it with the lock held."""
        end = time.monotonic() + timeout
        while not self._closed and not ready():
            if time.monotonic() >= end:
                raise TimeoutError
            self._changed.wait(min(end - time.monotonic(), threading.TIMEOUT_MAX))
        if self._closed:
            raise ClosedError

    def _wait_for_bundle(self, ready: Any, timeout: float) -> None:
        """Like `_wait`; ClosedError also if none is to come."""
        self._wait(lambda: self._ended or ready(), timeout)
        if not ready():
            raise ClosedError


class LatestMailbox(_Box):
    """Keeps the newest bundle only. `pick` waits for the very first bundle and never after that."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: Bundle | None = None
        self._is_new = False
        self._posted = 0

    def post(self, bundle: Bundle, timeout: float) -> None:
        """Replace the previous bundle."""
        with self._changed:
            if self._closed:
                raise ClosedError
            self._newest, self._is_new = bundle, True
            self._posted += 1
            self._changed.notify_all()

    def pick(self, timeout: float) -> Bundle:
        """The newest bundle, which stays in the mailbox for other consumers."""
        with self._changed:
            self._wait_for_bundle(lambda: self._newest is not None, timeout)
            assert self._newest is not None
            self._is_new = False
            return self._newest

    def pick_newer(self, last: int, timeout: float) -> tuple[int, Bundle]:
        """The newest bundle and its number, counted from 1; waits until that number exceeds `last`."""
        with self._changed:
            self._wait(lambda: self._posted > last, timeout)
            assert self._newest is not None
            self._is_new = False
            return self._posted, self._newest

    def fill(self) -> float:
        """1 until the newest bundle has been picked."""
        return float(self._is_new)


class ReplyMailbox(LatestMailbox):
    """Every bundle is picked once. There is at most one, because nobody sends before the last reply has arrived."""

    def pick(self, timeout: float) -> Bundle:
        """A bundle that has not been picked."""
        with self._changed:
            self._wait_for_bundle(lambda: self._is_new, timeout)
            assert self._newest is not None
            self._is_new = False
            return self._newest


class AnyMailbox(_Box):
    """First come, first served. A replica waits before it posts while its previous bundle has not been picked.

    With `must_be_fresh`, it also waits until its bundle is picked: data collected meanwhile would be too stale.
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
            self._wait_for_slot(bundle.replica, losses, timeout)
            if not self._ended:
                self._bundles[bundle.replica] = bundle
                self._changed.notify_all()
            if self._must_be_fresh:
                self._wait_for_slot(bundle.replica, losses, timeout)

    def pick(self, timeout: float) -> Bundle:
        """The oldest bundle."""
        with self._changed:
            self._wait_for_bundle(lambda: self._bundles, timeout)
            _, bundle = self._bundles.popitem(last=False)
            self._changed.notify_all()
            return bundle

    def _wait_for_slot(self, replica: int, losses: int, timeout: float) -> None:
        def is_lost() -> bool:
            return self._losses[replica] != losses

        self._wait(lambda: self._ended or replica not in self._bundles or is_lost(), timeout)
        if is_lost() and not self._ended:
            raise ClosedError

    def fill(self) -> float:
        """Waiting bundles, relative to one for each replica that ever posted."""
        return len(self._bundles) / max(len(self._replicas), 1)


def mailbox(delivery: Delivery) -> Mailbox:
    """The mailbox for a delivery that is not `every`."""
    if delivery.kind == "any":
        return AnyMailbox(delivery.max_lag is not None)
    return LatestMailbox() if delivery.kind == "latest" else ReplyMailbox()
