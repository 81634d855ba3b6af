"""Channels: in order, bounded, closable."""

import threading
import time

import pytest

from fragmenta.worker.channels.memory import ClosedError, MemoryChannel


def test_values_arrive_in_order_and_by_reference() -> None:
    channel = MemoryChannel(capacity=3)
    values = [object(), object(), object()]
    for value in values:
        channel.send(value, 1)
    assert [channel.recv(1) for _ in values] == values


def test_a_full_channel_blocks_its_sender() -> None:
    channel = MemoryChannel(capacity=1)
    channel.send(1, 1)
    with pytest.raises(TimeoutError):
        channel.send(2, 0.05)
    assert channel.recv(1) == 1
    channel.send(2, 1)
    assert channel.recv(1) == 2


def test_an_empty_channel_times_out() -> None:
    with pytest.raises(TimeoutError):
        MemoryChannel().recv(0.05)


@pytest.mark.parametrize("waits", ["send", "recv"])
def test_close_wakes_everyone_who_waits(waits: str) -> None:
    channel = MemoryChannel(capacity=1)
    if waits == "send":
        channel.send(0, 1)
    seen = []

    def wait() -> None:
        try:
            channel.send(1, float("inf")) if waits == "send" else channel.recv(float("inf"))
        except ClosedError:
            seen.append(True)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    channel.close()
    for thread in threads:
        thread.join(2)
    assert seen == [True] * 3
    with pytest.raises(ClosedError):
        channel.recv(1)
