"""Pipes between real processes: dead peers are detected at once, stopped ones by timeout, and nothing is lost."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

import pipe_peer
from fragmenta.worker.channels.exchange import PipeExchange
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.channels.receiving import ArrayReceiver
from fragmenta.worker.channels.sending import ArraySender
from fragmenta.worker.channels.wire import packed_size

ITEMS = 1000
SOURCE = pathlib.Path(__file__).parents[2] / "src"


class Peer:
    """Another process, with a pipe in each direction."""

    def __init__(self, kind: str, behaviour: str) -> None:
        self.exchange = PipeExchange("127.0.0.1", pipe_peer.TOKEN)
        pipe, address = self.exchange.receiver("x", 1 << 22, 2, kind == "shared")
        self.here = ArrayReceiver(pipe)
        command = [sys.executable, pipe_peer.__file__, behaviour, json.dumps(address)]
        path = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=path)
        assert self.process.stdout is not None
        self.there = ArraySender(self.exchange.sender(json.loads(self.process.stdout.readline()), 20))

    def close(self) -> None:
        self.exchange.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(params=["shared", "socket"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def start(kind: str) -> Iterator:
    peers: list[Peer] = []

    def start_peer(behaviour: str) -> Peer:
        peers.append(Peer(kind, behaviour))
        return peers[-1]

    yield start_peer
    for peer in peers:
        peer.close()


@pytest.mark.full
def test_arrays_make_a_round_trip(start) -> None:
    peer = start("echo")
    for value in (
        np.arange(5, dtype=np.int8),
        np.random.default_rng(0).random((300, 1000)),
        np.float32(3),
        np.zeros(0),
    ):
        peer.there.send(value, 20)
        np.testing.assert_array_equal(peer.here.recv(20), value)


@pytest.mark.full
@pytest.mark.brief("shared-recv", "socket-send")
@pytest.mark.parametrize("waits", ["send", "recv", "drain"])
def test_a_killed_peer_is_detected_at_once(start, waits: str) -> None:
    peer = start("sleep")
    for _ in range(2 if waits != "recv" else 0):
        peer.there.send(np.zeros(ITEMS), 5)
    calls = {
        "send": lambda: peer.there.send(np.zeros(ITEMS), 60),
        "recv": lambda: peer.here.recv(60),
        "drain": lambda: peer.there._pipe.drain(60),
    }
    subprocess.Popen(["/bin/sh", "-c", f"sleep 0.2; kill -9 {peer.process.pid}"]).wait()
    began = time.monotonic()
    with pytest.raises(ClosedError):
        calls[waits]()
    assert time.monotonic() - began < 2
    with pytest.raises(ClosedError):
        calls[waits]()


@pytest.mark.full
@pytest.mark.brief("shared")
def test_a_peer_that_is_killed_while_we_wait_is_detected_soon(start) -> None:
    peer = start("sleep")
    killer = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.5; kill -9 {peer.process.pid}"])
    began = time.monotonic()
    with pytest.raises(ClosedError):
        peer.here.recv(60)
    assert 0.2 < time.monotonic() - began < 3
    killer.wait()


@pytest.mark.full
@pytest.mark.brief("socket")
def test_a_stopped_peer_is_not_a_dead_one(start) -> None:
    peer = start("echo")
    peer.process.send_signal(signal.SIGSTOP)
    peer.there.send(np.zeros(ITEMS), 5)
    peer.there.send(np.ones(ITEMS), 5)
    with pytest.raises(TimeoutError):
        peer.here.recv(0.5)
    with pytest.raises(TimeoutError):
        peer.there.send(np.zeros(ITEMS), 0.5)
    peer.process.send_signal(signal.SIGCONT)
    assert [peer.here.recv(20)[0] for _ in range(2)] == [0, 1]


@pytest.mark.full
@pytest.mark.brief("shared")
def test_values_that_a_peer_sent_before_it_died_are_received(start) -> None:
    peer = start("two")
    peer.there.send(0, 5)
    peer.process.wait(20)
    assert [int(peer.here.recv(5)) for _ in range(2)] == [0, 1]
    with pytest.raises(ClosedError):
        peer.here.recv(60)


def test_a_receiver_that_is_gone_before_the_sender_connects(kind: str) -> None:
    exchange = PipeExchange("127.0.0.1", pipe_peer.TOKEN)
    pipe, address = exchange.receiver("x", 100, 2, kind == "shared")
    pipe.close()

    def send() -> None:
        sender = exchange.sender(address, 5)
        sender.send([b"x"], 5)
        sender.drain(5)

    with pytest.raises(ClosedError):
        send()
    exchange.close()


@pytest.mark.full
@pytest.mark.brief("shared")
def test_a_stalled_consumer_blocks_the_producer_and_nothing_is_lost(start) -> None:
    peer = start("count")
    producer = psutil.Process(peer.process.pid)
    time.sleep(0.5)
    before, ours = producer.memory_info().rss, psutil.Process().memory_info().rss
    time.sleep(2)
    assert producer.cpu_percent(1.0) < 50  # it waits without spinning
    assert producer.memory_info().rss - before < 5e6
    assert psutil.Process().memory_info().rss - ours < 5e6
    received = [peer.here.recv(20) for _ in range(1000)]
    assert [int(value[0]) for value in received] == list(range(1000))
    assert all(value.shape == (ITEMS,) and (value == value[0]).all() for value in received)


def test_large_arrays_are_sent_in_the_background() -> None:
    exchange = PipeExchange("127.0.0.1", pipe_peer.TOKEN)
    value = np.random.default_rng(0).random(8_000_000)
    pipe, address = exchange.receiver("x", packed_size([(value.dtype, value.shape)]), 2, same_node=False)
    sender, receiver = ArraySender(exchange.sender(address, 5)), ArrayReceiver(pipe)
    sender.send(value, 5)  # 64 MB, far more than the system buffers, without a receiver
    sender.send(np.float64(1), 5)
    with pytest.raises(TimeoutError):
        sender.send(np.float64(2), 0.1)
    np.testing.assert_array_equal(receiver.recv(20), value)
    assert receiver.recv(20) == 1
    exchange.close()
