"""Mailboxes: the newest bundle wins, or first come, first served; no wait is endless."""

import threading
import time
from collections.abc import Callable

import pytest

from fragmenta import Delivery
from fragmenta.worker.channels.mailbox import AnyMailbox, Bundle, LatestMailbox, mailbox
from fragmenta.worker.channels.memory import ClosedError


def bundle(version: int, replica: int = 0) -> Bundle:
    return Bundle({(0, "x"): version}, version, replica, version)


def waits(call: Callable[[], object]) -> threading.Thread:
    """Start a call that must not return by itself."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except ClosedError:
            outcome.append("closed")

    thread = threading.Thread(target=run)
    thread.outcome = outcome  # pyright: ignore
    thread.start()
    time.sleep(0.05)
    assert not outcome, "it should wait"
    return thread


def test_latest_keeps_the_newest_for_all_readers() -> None:
    box = LatestMailbox()
    with pytest.raises(TimeoutError):
        box.pick(0.01)
    for version in range(3):
        box.post(bundle(version), 1.0)
    assert [box.pick(1.0).version for _ in range(2)] == [2, 2]


def test_any_serves_in_order_of_arrival_and_each_bundle_once() -> None:
    box = AnyMailbox(must_be_fresh=False)
    for replica in (2, 0, 1):
        box.post(bundle(7, replica), 1.0)
    assert [box.pick(1.0).replica for _ in range(3)] == [2, 0, 1]
    with pytest.raises(TimeoutError):
        box.pick(0.01)


def test_a_replica_posts_its_next_bundle_once_the_last_was_picked() -> None:
    box = AnyMailbox(must_be_fresh=False)
    box.post(bundle(0, 1), 1.0)
    box.post(bundle(0, 2), 1.0)
    with pytest.raises(TimeoutError):
        box.post(bundle(1, 1), 0.01)
    waiting = waits(lambda: box.post(bundle(1, 1), 5.0))
    assert box.pick(1.0).replica == 1
    waiting.join(5.0)
    assert [box.pick(1.0) for _ in range(2)] == [bundle(0, 2), bundle(1, 1)]


def test_if_bundles_must_be_fresh_posting_waits_until_picked() -> None:
    box = AnyMailbox(must_be_fresh=True)
    waiting = waits(lambda: box.post(bundle(0), 5.0))
    assert box.pick(1.0) == bundle(0)
    waiting.join(5.0)
    assert not waiting.is_alive()


@pytest.mark.parametrize("kind", ["latest", "any"])
def test_closing_wakes_waiters_and_ending_unblocks_producers(kind: str) -> None:
    box = mailbox(Delivery("x", kind))  # pyright: ignore
    waiting = waits(lambda: box.pick(30.0))
    box.close()
    waiting.join(5.0)
    assert waiting.outcome == ["closed"]  # pyright: ignore
    ended = mailbox(Delivery("x", kind))  # pyright: ignore
    ended.post(bundle(0), 1.0)
    ended.end()
    for version in range(3):
        ended.post(bundle(version), 1.0)  # returns at once, although nobody picks


def test_a_reader_that_needs_a_newer_bundle_waits_for_it() -> None:
    box = LatestMailbox()
    box.post(bundle(3), 1.0)
    box.post(bundle(4), 1.0)
    assert box.pick_newer(0, 1.0) == (2, bundle(4))
    with pytest.raises(TimeoutError):
        box.pick_newer(2, 0.01)
    waiting = waits(lambda: box.pick_newer(2, 30.0))
    box.post(bundle(5), 1.0)
    waiting.join(5.0)
    assert waiting.outcome == [(3, bundle(5))]  # pyright: ignore


@pytest.mark.parametrize("must_be_fresh", [False, True])
def test_a_lost_replica_stops_waiting_and_others_do_not(must_be_fresh: bool) -> None:
    box = AnyMailbox(must_be_fresh)
    threads = []
    for replica in (0, 1):
        if not must_be_fresh:
            box.post(bundle(0, replica), 1.0)
        threads.append(waits(lambda replica=replica: box.post(bundle(1, replica), 30.0)))
    box.lose(1)
    threads[1].join(5.0)
    assert threads[1].outcome == ["closed"]  # pyright: ignore
    assert threads[0].is_alive()
    for _ in range(2):
        box.pick(1.0)
    threads[0].join(5.0)
    assert not threads[0].is_alive()
