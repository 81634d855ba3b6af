"""Mailboxes between processes: producers wait as within a process, and a lost replica does not disturb the others."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from fragmenta.worker.channels.exchange import PipeExchange
from fragmenta.worker.channels.mailbox import AnyMailbox, Bundle, LatestMailbox
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.channels.pipe import Pipe
from fragmenta.worker.channels.receiving import pump_in
from fragmenta.worker.channels.sending import BundleSender, pack, pump_out
from fragmenta.worker.channels.wire import bundle_size
from pipe_peer import TOKEN

Output = pytest.CaptureFixture[str]
KEYS = ((3, "learner"), (7, "learner"))
SIZE = bundle_size([(np.dtype(np.float32), (4,)), (np.dtype(np.int32), ())])


def bundle(version: int, replica: int = 0) -> Bundle:
    return Bundle({KEYS[1]: np.int32(version), KEYS[0]: np.full(4, version, np.float32)}, version, replica, version)


@pytest.fixture(params=["shared", "socket"])
def connect(request: pytest.FixtureRequest) -> Iterator:
    exchange = PipeExchange("127.0.0.1", TOKEN)

    def pipe(capacity: int = 1) -> tuple[Pipe, Pipe]:
        receiver, address = exchange.receiver("x", SIZE, capacity, request.param == "shared")
        return exchange.sender(address, 5), receiver

    yield pipe
    exchange.close()


def test_bundles_arrive_whole(capfd: Output, connect) -> None:
    sender, receiver = connect()
    box = AnyMailbox(must_be_fresh=False)
    pump = pump_in(receiver, box, KEYS, 2)
    BundleSender(sender, KEYS, must_be_fresh=False).post(bundle(5, 2), 5)
    received = box.pick(5)
    assert received[1:] == (5, 2, 5)
    assert received.values.keys() == set(KEYS)
    np.testing.assert_array_equal(received.values[KEYS[0]], np.full(4, 5, np.float32))
    assert received.values[KEYS[1]] == 5
    pump.close()
    assert not capfd.readouterr().err


def test_a_producer_waits_until_its_bundles_are_picked(connect) -> None:
    sender, receiver = connect()
    box = AnyMailbox(must_be_fresh=False)
    pump = pump_in(receiver, box, KEYS, 0)
    port = BundleSender(sender, KEYS, must_be_fresh=False)
    port.post(bundle(0), 5)
    port.post(bundle(1), 5)  # one bundle may be ahead
    with pytest.raises(TimeoutError):
        port.post(bundle(2), 0.2)
    assert box.pick(5).version == 0
    port.post(bundle(2), 5)
    assert [box.pick(5).version for _ in range(2)] == [1, 2]
    pump.close()


def test_if_bundles_must_be_fresh_the_producer_waits_for_its_own(connect) -> None:
    sender, receiver = connect()
    box = AnyMailbox(must_be_fresh=True)
    pump = pump_in(receiver, box, KEYS, 0)
    port = BundleSender(sender, KEYS, must_be_fresh=True)
    posted = []

    def post() -> None:
        for version in range(3):
            port.post(bundle(version), 20)
            posted.append(version)

    thread = threading.Thread(target=post)
    thread.start()
    for version in range(3):
        time.sleep(0.1)
        assert posted == list(range(version))
        assert box.pick(5).version == version
    thread.join(5)
    assert posted == [0, 1, 2]
    pump.close()


def test_producers_continue_after_the_last_pick(connect) -> None:
    sender, receiver = connect()
    box = AnyMailbox(must_be_fresh=True)
    pump = pump_in(receiver, box, KEYS, 0)
    port = BundleSender(sender, KEYS, must_be_fresh=True)
    box.end()
    for version in range(5):
        port.post(bundle(version), 5)
    port.end()
    pump.close()
    port.post(bundle(9), 5)  # not even sent


@pytest.mark.parametrize("must_be_fresh", [False, True])
def test_a_replica_is_lost_and_replaced(capfd: Output, connect, must_be_fresh: bool) -> None:
    box = AnyMailbox(must_be_fresh)
    ends = {replica: connect() for replica in (0, 1)}
    pumps = {replica: pump_in(receiver, box, KEYS, replica) for replica, (_, receiver) in ends.items()}
    for replica, (sender, _) in ends.items():
        BundleSender(sender, KEYS, must_be_fresh=False).post(bundle(1, replica), 5)
        if not must_be_fresh:
            BundleSender(sender, KEYS, must_be_fresh=False).post(bundle(2, replica), 5)
    time.sleep(0.2)  # both pumps wait in the mailbox now
    pumps[1].close()
    assert not pumps[1].is_alive()
    with pytest.raises(ClosedError):
        ends[1][0].drain(5)
    sender, receiver = connect()
    pumps[1] = pump_in(receiver, box, KEYS, 1)
    BundleSender(sender, KEYS, must_be_fresh=False).post(bundle(10, 1), 5)
    # Its bundle in the mailbox stays, the waiting one is gone, and the other replica is not affected.
    received = {(picked.replica, picked.version) for picked in [box.pick(5) for _ in range(3 if must_be_fresh else 4)]}
    assert received == {(0, 1), (1, 1), (1, 10)} | (set() if must_be_fresh else {(0, 2)})
    with pytest.raises(TimeoutError):
        box.pick(0.1)
    for pump in pumps.values():
        assert pump.is_alive()
        pump.close()
    assert not capfd.readouterr().err


def test_latest_sends_the_newest_without_waiting(capfd: Output, connect) -> None:
    source = LatestMailbox()
    boxes = [LatestMailbox() for _ in range(2)]
    ends = [connect() for _ in boxes]
    pumps = [pump_in(receiver, box, KEYS, 0) for (_, receiver), box in zip(ends, boxes, strict=True)]
    pumps += [pump_out(source, sender, KEYS) for sender, _ in ends]
    for version in range(2000):
        source.post(bundle(version), 1)
    deadline = time.monotonic() + 10
    while any(box.pick(5).version < 1999 for box in boxes) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [box.pick(5).version for box in boxes] == [1999, 1999]
    for pump in pumps:
        pump.close()
    assert not capfd.readouterr().err


def test_an_idle_consumer_blocks_no_producer_and_a_new_one_gets_the_newest(connect) -> None:
    source = LatestMailbox()
    sender, receiver = connect()
    pump = pump_out(source, sender, KEYS)
    for version in range(50):
        source.post(bundle(version), 1)
        time.sleep(0.001)
    receiver.close()
    deadline = time.monotonic() + 5
    while pump.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not pump.is_alive()
    pump.close()
    sender, receiver = connect()
    box = LatestMailbox()
    pumps = [pump_in(receiver, box, KEYS, 0), pump_out(source, sender, KEYS)]
    assert box.pick(5).version == 49
    for pump in pumps:
        pump.close()


@pytest.mark.parametrize("closes", ["box", "sender"])
def test_a_pump_ends_quietly_with_its_mailbox_or_its_peer(capfd: Output, connect, closes: str) -> None:
    sender, receiver = connect()
    box = AnyMailbox(must_be_fresh=True)
    pump = pump_in(receiver, box, KEYS, 0)
    BundleSender(sender, KEYS, must_be_fresh=False).post(bundle(0), 5)
    if closes == "sender":
        box.pick(5)
    (box if closes == "box" else sender).close()
    deadline = time.monotonic() + 5
    while pump.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not pump.is_alive()
    assert not capfd.readouterr().err
    pump.close()


@pytest.mark.parametrize("message", [[b"rubbish"], pack([np.zeros(4)], (1, 0, 1)), pack([], (1,))])
def test_an_invalid_message_ends_the_pump_and_the_peer_is_told(capfd: Output, connect, message: list) -> None:
    sender, receiver = connect()
    pump = pump_in(receiver, AnyMailbox(must_be_fresh=False), KEYS, 0)
    sender.send(message, 5)
    with pytest.raises(ClosedError):
        sender.drain(5)
    pump.close()
    assert "WireError" in capfd.readouterr().err


def test_a_bundle_of_another_replica_is_refused(capfd: Output, connect) -> None:
    sender, receiver = connect()
    pump = pump_in(receiver, AnyMailbox(must_be_fresh=False), KEYS, 0)
    BundleSender(sender, KEYS, must_be_fresh=False).post(bundle(0, replica=1), 5)
    with pytest.raises(ClosedError):
        sender.drain(5)
    pump.close()
    assert "replica 1" in capfd.readouterr().err


def test_unexpected_values_are_refused(connect) -> None:
    sender, _ = connect()
    with pytest.raises(ValueError, match="instead of"):
        BundleSender(sender, KEYS[:1], must_be_fresh=False).post(bundle(0), 5)
