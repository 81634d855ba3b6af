"""Authentication: only peers with the token can connect, and strangers cannot block them."""

import socket
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from fragmenta.worker.channels.exchange import PipeExchange
from fragmenta.worker.channels.hello import HelloError, accept_hello, say_hello
from fragmenta.worker.channels.memory import ClosedError
from pipe_peer import TOKEN


@pytest.fixture
def exchange() -> Iterator[PipeExchange]:
    result = PipeExchange("127.0.0.1", TOKEN)
    yield result
    result.close()


def listening() -> set:
    return {c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}


def test_it_listens_only_when_needed_and_only_on_the_given_address(exchange: PipeExchange) -> None:
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


def test_a_wrong_token_is_refused_quickly(exchange: PipeExchange) -> None:
    pipe, address = exchange.receiver("x", 100, 2, same_node=False)
    stranger = PipeExchange("127.0.0.1", b"another token, as long as ours is")
    began = time.monotonic()
    with pytest.raises(HelloError, match="token"):
        stranger.sender(address, 20)
    assert time.monotonic() - began < 2
    exchange.sender(address, 5).send([b"ours"], 5)
    assert bytes(pipe.recv(5)) == b"ours"
    stranger.close()


@pytest.mark.full
@pytest.mark.parametrize("payload", [b"", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 200, b"FRGHELO\x01" + b"\xff" * 300])
def test_strangers_are_dropped_and_block_nobody(exchange: PipeExchange, payload: bytes) -> None:
    pipe, address = exchange.receiver("x", 100, 2, same_node=False)
    strangers = [socket.create_connection((address["host"], address["port"])) for _ in range(20)]
    for stranger in strangers:
        stranger.sendall(payload)
    began = time.monotonic()
    exchange.sender(address, 5).send([b"ours"], 5)
    assert bytes(pipe.recv(5)) == b"ours"
    assert time.monotonic() - began < 2
    for stranger in strangers:
        stranger.settimeout(8)
        answer = b""
        try:
            while chunk := stranger.recv(100):
                answer += chunk
        except ConnectionResetError:
            pass
        assert len(answer) <= 40  # the challenge, but no response
        stranger.close()


def test_a_listener_without_the_token_learns_nothing_and_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = socket.create_connection(listener.getsockname())
        callee, _ = listener.accept()
        with caller, callee:
            refused = []

            def accept() -> None:
                try:
                    accept_hello(callee, b"some other token")
                except HelloError as error:
                    refused.append(str(error))
                    callee.close()

            thread = threading.Thread(target=accept)
            thread.start()
            with pytest.raises(HelloError):
                say_hello(caller, TOKEN, "control")
            thread.join()
            assert "different token" in refused[0]


def test_both_sides_agree_on_the_name() -> None:
    caller, callee = socket.socketpair()
    with caller, callee:
        names = []
        thread = threading.Thread(target=lambda: names.append(accept_hello(callee, TOKEN)))
        thread.start()
        say_hello(caller, TOKEN, "actor[3]->learner:12")
        thread.join()
        assert names == ["actor[3]->learner:12"]


@pytest.mark.parametrize("name", ["", "a b", "../x", "a..b", "ä", "x\n", "x" * 201, "-x", "a/b"])
def test_odd_names_are_refused(exchange: PipeExchange, name: str) -> None:
    for same_node in (True, False):
        with pytest.raises(ValueError, match="not a valid pipe name"):
            exchange.receiver(name, 100, 2, same_node)


def test_a_pipe_has_one_sender_and_no_other_name_is_known(exchange: PipeExchange) -> None:
    pipe, address = exchange.receiver("x", 100, 2, same_node=False)
    exchange.sender(address, 5).send([b"first"], 5)
    assert bytes(pipe.recv(5)) == b"first"  # otherwise its handshake might come after the second's

    def send(other_address: dict) -> None:
        second = exchange.sender(other_address, 5)
        second.send([b"late"], 5)
        second.drain(5)

    for other_address in (address, {**address, "name": "nobody"}):
        with pytest.raises(ClosedError):
            send(other_address)


def test_a_sender_without_a_listener_times_out(exchange: PipeExchange) -> None:
    _, address = exchange.receiver("x", 100, 2, same_node=False)
    exchange.close()
    other_exchange = PipeExchange("127.0.0.1", TOKEN)
    with pytest.raises(TimeoutError, match="no answer from"):
        other_exchange.sender(address, 0.3)
    other_exchange.close()


def test_closing_does_not_wait_for_strangers(exchange: PipeExchange) -> None:
    _, address = exchange.receiver("x", 100, 2, same_node=False)
    with socket.create_connection((address["host"], address["port"])):
        time.sleep(0.1)
        began = time.monotonic()
        exchange.close()
        assert time.monotonic() - began < 2


def test_wildcard_addresses_and_short_tokens_are_refused() -> None:
    for bind in ("0.0.0.0", "::"):
        with pytest.raises(ValueError, match="every address"):
            PipeExchange(bind, TOKEN)
    with pytest.raises(ValueError, match="guessed"):
        PipeExchange("127.0.0.1", b"short")
