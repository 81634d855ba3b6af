"""Channels: in order, bounded, closable; the same within a process, through shared memory and through a socket."""

import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fragmenta.worker.channels.exchange import PipeExchange
from fragmenta.worker.channels.memory import ClosedError, MemoryChannel, Receiver, Sender
from fragmenta.worker.channels.receiving import ArrayReceiver
from fragmenta.worker.channels.sending import ArraySender
from fragmenta.worker.channels.wire import packed_size
from pipe_peer import TOKEN

KINDS = ("memory", "shared", "socket")
INFINITE = float("inf")


class Ends:
    """A factory of channels of one kind; returns both ends of each."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.exchange = PipeExchange("127.0.0.1", TOKEN)

    def __call__(self, capacity: int, items: int = 1000) -> tuple[Sender, Receiver]:
        if self.kind == "memory":
            channel = MemoryChannel(capacity)
            return channel, channel
        size = packed_size([(np.dtype(float), (items,))])
        pipe, address = self.exchange.receiver("x", size, capacity, self.kind == "shared")
        return ArraySender(self.exchange.sender(address, 5)), ArrayReceiver(pipe)


@pytest.fixture(params=KINDS)
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    factory = Ends(request.param)
    yield factory
    factory.exchange.close()


@pytest.fixture(params=KINDS[1:])
def remote_ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    factory = Ends(request.param)
    yield factory
    factory.exchange.close()


def run(*calls: Callable[[], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def test_values_arrive_in_order(ends: Ends) -> None:
    sender, receiver = ends(3)
    for start in range(0, 30, 3):
        for value in range(start, start + 3):
            sender.send(np.int32(value), 1)
        assert [int(receiver.recv(1)) for _ in range(3)] == [start, start + 1, start + 2]


def test_within_a_process_values_go_by_reference() -> None:
    channel = MemoryChannel()
    value = object()
    channel.send(value, 1)
    assert channel.recv(1) is value


@pytest.mark.parametrize("items", [1, 1000, 300_000])
def test_received_values_belong_to_the_receiver(remote_ends: Ends, items: int) -> None:
    sender, receiver = remote_ends(2, items)
    values = [np.random.default_rng(i).random(items) for i in range(10)]
    received = []

    def send() -> None:
        for value in values:
            sender.send(value, 20)

    (thread,) = run(send)
    for _ in values:
        received.append(receiver.recv(20))
    thread.join()
    for value, copy in zip(values, received, strict=True):
        np.testing.assert_array_equal(value, copy)
    received[0][:] = 0.0
    np.testing.assert_array_equal(values[1], received[1])


def test_a_full_channel_blocks_its_sender(ends: Ends) -> None:
    sender, receiver = ends(1)
    sender.send(1, 1)
    with pytest.raises(TimeoutError):
        sender.send(2, 0.05)
    with pytest.raises(TimeoutError):
        sender.send(2, 0)
    assert receiver.recv(1) == 1
    sender.send(2, 1)
    assert receiver.recv(0) == 2


def test_an_empty_channel_times_out(ends: Ends) -> None:
    _, receiver = ends(2)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        receiver.recv(0.2)
    assert 0.15 < time.monotonic() - began < 2
    with pytest.raises(TimeoutError):
        receiver.recv(0)


def soon(condition: Callable[[], bool]) -> bool:
    """Whether the condition becomes true soon: a value needs a moment to pass through a socket."""
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_fill_is_the_share_of_occupied_slots(ends: Ends) -> None:
    sender, receiver = ends(4)
    assert sender.fill() == receiver.fill() == 0
    sender.send(1, 1)
    assert sender.fill() == 0.25
    for _ in range(3):
        sender.send(1, 1)
    assert sender.fill() == 1
    assert soon(lambda: receiver.fill() == 1)
    for _ in range(4):
        receiver.recv(1)
    assert soon(lambda: sender.fill() == 0)
    assert receiver.fill() == 0


@pytest.mark.parametrize("waits", ["send", "recv"])
@pytest.mark.parametrize("closes", ["this side", "the other"])
def test_close_wakes_all_waiting_threads(ends: Ends, waits: str, closes: str) -> None:
    sender, receiver = ends(1)
    if waits == "send":
        sender.send(0, 1)
    woken = []

    def wait() -> None:
        try:
            sender.send(1, INFINITE) if waits == "send" else receiver.recv(INFINITE)
        except ClosedError:
            woken.append(True)

    threads = run(*[wait] * 3)
    time.sleep(0.1)
    began = time.monotonic()
    waiting, other = (sender, receiver) if waits == "send" else (receiver, sender)
    (waiting if closes == "this side" else other).close()
    for thread in threads:
        thread.join(5)
    assert woken == [True] * 3
    assert time.monotonic() - began < 1
    waiting.close()
    for _ in range(2):
        with pytest.raises(ClosedError):
            waiting.send(1, 1) if waits == "send" else waiting.recv(1)
    assert waiting.fill() <= 1
    waiting.close()


def test_values_sent_before_the_sender_closed_are_received(remote_ends: Ends) -> None:
    sender, receiver = remote_ends(2)
    sender.send(1, 1)
    sender.send(2, 1)
    sender.close()
    assert [int(receiver.recv(1)) for _ in range(2)] == [1, 2]
    with pytest.raises(ClosedError):
        receiver.recv(INFINITE)


def test_a_message_that_does_not_fit_is_refused(remote_ends: Ends) -> None:
    sender, receiver = remote_ends(2, items=10)
    with pytest.raises(ValueError, match="exceeds this pipe"):
        sender.send(np.zeros(100), 1)
    sender.send(np.zeros(10), 1)
    assert receiver.recv(1).shape == (10,)


def test_draining_waits_for_slots_to_be_freed(remote_ends: Ends) -> None:
    pipe, address = remote_ends.exchange.receiver("x", 100, 1, remote_ends.kind == "shared")
    sender = remote_ends.exchange.sender(address, 5)
    sender.drain(1)
    sender.send([b"abc", memoryview(b"de"), b""], 1)
    assert bytes(pipe.take(1)) == b"abcde"
    with pytest.raises(TimeoutError):
        sender.drain(0.05)
    with pytest.raises(TimeoutError):
        sender.send([b"x"], 0.05)
    with pytest.raises(RuntimeError, match="free"):
        pipe.take(1)
    pipe.free()
    sender.drain(1)
    with pytest.raises(RuntimeError):
        pipe.free()
    for call in (lambda: pipe.send([b""], 1), lambda: sender.recv(1)):
        with pytest.raises(RuntimeError, match="this end"):
            call()


def test_two_threads_at_each_end_lose_nothing(remote_ends: Ends) -> None:
    sender, receiver = remote_ends(3)
    received: list[int] = []

    def send(start: int) -> None:
        for value in range(start, start + 500):
            sender.send(np.int32(value), 20)

    def receive() -> None:
        for _ in range(500):
            received.append(int(receiver.recv(20)))

    for thread in run(lambda: send(0), lambda: send(500), receive, receive):
        thread.join(60)
    assert sorted(received) == list(range(1000))


@pytest.mark.parametrize("capacity", [2, 3])
def test_counters_wrap_around_before_32_bits_overflow(capacity: int) -> None:
    ends = Ends("shared")
    sender, receiver = ends(capacity)
    last = 2**32 // capacity * capacity - 2
    for end in (sender, receiver):
        end._pipe._count = last  # pyright: ignore
    for word in (sender._pipe._sent, sender._pipe._freed):  # pyright: ignore
        word.cell.value = last
    for start in range(0, 12, capacity):
        values = list(range(start, start + capacity))
        for value in values:
            sender.send(value, 1)
        assert sender.fill() == 1
        assert [int(receiver.recv(1)) for _ in values] == values
    ends.exchange.close()


def left_behind() -> tuple[int, int, list[str]]:
    maps = pathlib.Path("/proc/self/maps").read_text().count("memfd:fragmenta")
    return len(os.listdir("/proc/self/fd")), maps, sorted(os.listdir("/dev/shm"))


def test_nothing_is_left_behind(remote_ends: Ends) -> None:
    remote_ends(2)[0].send(1, 1)
    remote_ends.exchange.close()
    before = left_behind()
    for _ in range(20):
        exchange = PipeExchange("127.0.0.1", TOKEN)
        for items in (10, 100_000):
            size = packed_size([(np.dtype(float), (items,))])
            pipe, address = exchange.receiver("x", size, 2, remote_ends.kind == "shared")
            sender = ArraySender(exchange.sender(address, 5))
            sender.send(np.zeros(items), 1)
            assert ArrayReceiver(pipe).recv(5).shape == (items,)
            sender.send(np.zeros(items), 1)
        exchange.close()
    assert left_behind() == before
    assert not [t.name for t in threading.enumerate() if t.name.startswith("fragmenta-")]
