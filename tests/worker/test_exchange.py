"""Who may connect: those with the token, nobody else, and nobody is kept from it by strangers."""

import socket
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from fragmenta.worker.channels.exchange import Exchange
from fragmenta.worker.channels.hello import HelloError, accept_hello, say_hello
from fragmenta.worker.channels.memory import ClosedError
from pipe_peer import TOKEN


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    made = Exchange("127.0.0.1", TOKEN)
    yield made
    made.close()


def listening() -> set:
    return {c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}


def test_it_listens_only_when_it_must_and_where_it_was_told(exchange: Exchange) -> None:
    before = listening()
    exchange.receiver("x", 100, 2, same_node=True)
    assert listening() == before
    _, address = exchange.receiver("x", 100, 2, same_node=False)
    assert {tuple(place) for place in listening() - before} == {("127.0.0.1", address["port"])}
    exchange.receiver("y", 100, 2, same_node=False)
    assert len(listening() - before) == 1
    exchange.close()
    assert listening() == before
    with pytest.raises(RuntimeError, match="closed"):
        exchange.receiver("z", 100, 2, same_node=False)


def test_another_token_is_refused_and_soon(exchange: Exchange) -> None:
    pipe, address = exchange.receiver("x", 100, 2, same_node=False)
    stranger = Exchange("127.0.0.1", b"another token, as long as ours is")
    began = time.monotonic()
    with pytest.raises(HelloError, match="token"):
        stranger.sender(address, 20)
    assert time.monotonic() - began < 2
    exchange.sender(address, 5).send([b"ours"], 5)
    assert bytes(pipe.recv(5)) == b"ours"
    stranger.close()


@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 200, b"FRGHELO\x01" + b"\xff" * 300])
def test_strangers_are_dropped_and_block_nobody(exchange: Exchange, says: bytes) -> None:
    pipe, address = exchange.receiver("x", 100, 2, same_node=False)
    strangers = [socket.create_connection((address["host"], address["port"])) for _ in range(20)]
    for stranger in strangers:
        stranger.sendall(says)
    began = time.monotonic()
    exchange.sender(address, 5).send([b"ours"], 5)
    assert bytes(pipe.recv(5)) == b"ours"
    assert time.monotonic() - began < 2
    for stranger in strangers:
        stranger.settimeout(8)
        found = b""
        try:
            while more := stranger.recv(100):
                found += more
        except ConnectionResetError:
            pass
        assert len(found) <= 40  # the question, no answer
        stranger.close()


def test_a_listener_without_the_token_learns_nothing_and_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        called, _ = listener.accept()
        with caller, called:
            refused = []

            def accept() -> None:
                try:
                    accept_hello(called, b"some other token")
                except HelloError as error:
                    refused.append(str(error))
                    called.close()

            thread = threading.Thread(target=accept)
            thread.start()
            with pytest.raises(HelloError):
                say_hello(caller, TOKEN, "control")
            thread.join()
            assert "another token" in refused[0]


def test_both_sides_agree_on_the_name() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        names = []
        thread = threading.Thread(target=lambda: names.append(accept_hello(theirs, TOKEN)))
        thread.start()
        say_hello(ours, TOKEN, "actor[3]->learner:12")
        thread.join()
        assert names == ["actor[3]->learner:12"]


@pytest.mark.parametrize("name", ["", "a b", "../x", "a..b", "ä", "x\n", "x" * 201, "-x", "a/b"])
def test_odd_names_are_refused(exchange: Exchange, name: str) -> None:
    for same_node in (True, False):
        with pytest.raises(ValueError, match="no name for a pipe"):
            exchange.receiver(name, 100, 2, same_node)


def test_a_pipe_has_one_sender_and_no_other_name_is_known(exchange: Exchange) -> None:
    pipe, address = exchange.receiver("x", 100, 2, same_node=False)
    exchange.sender(address, 5).send([b"first"], 5)
    assert bytes(pipe.recv(5)) == b"first"  # else it may be greeted only after the second

    def send(other: dict) -> None:
        late = exchange.sender(other, 5)
        late.send([b"late"], 5)
        late.drain(5)

    for other in (address, {**address, "name": "nobody"}):
        with pytest.raises(ClosedError):
            send(other)


def test_a_sender_without_anybody_to_call_gives_up_in_time(exchange: Exchange) -> None:
    _, address = exchange.receiver("x", 100, 2, same_node=False)
    exchange.close()
    other = Exchange("127.0.0.1", TOKEN)
    with pytest.raises(TimeoutError, match="nobody answers"):
        other.sender(address, 0.3)
    other.close()


def test_closing_does_not_wait_for_strangers(exchange: Exchange) -> None:
    _, address = exchange.receiver("x", 100, 2, same_node=False)
    with socket.create_connection((address["host"], address["port"])):
        time.sleep(0.1)
        began = time.monotonic()
        exchange.close()
        assert time.monotonic() - began < 2


def test_every_address_and_short_tokens_are_refused() -> None:
    for bind in ("0.0.0.0", "::"):
        with pytest.raises(ValueError, match="every address"):
            Exchange(bind, TOKEN)
    with pytest.raises(ValueError, match="guessed"):
        Exchange("127.0.0.1", b"short")
