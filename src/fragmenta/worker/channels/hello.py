"""The handshake in which two processes that share a token authenticate each other when they connect.

listener: magic, nonce
caller:   magic, nonce, proof, length of the name, name
listener: proof
"""

import hmac
import re
import secrets
import socket
import time

MOST_NAME = 200
HELLO_SECONDS = 5.0
"""A caller that has not completed the handshake by then is dropped."""
_MAGIC = b"FRGHELO\x01"
_NONCE = _PROOF = 32
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:>~\[\]-]*")


class HelloError(ConnectionError):
    """Authentication of the peer failed; the message says why."""


def check_name(name: str) -> str:
    """Validate and return a name: at most 200 letters, digits and `_.:>~[]-`, without `..`."""
    if len(name) > MOST_NAME or not _NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"{name[:MOST_NAME]!r} is not a valid pipe name: use letters, digits and _ . : > ~ [ ] -")
    return name


def accept_hello(sock: socket.socket, token: bytes, timeout: float = HELLO_SECONDS) -> str:
    """The listener's side of the handshake; returns the name that the caller asks for.

    HelloError if the caller fails authentication, TimeoutError after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    listener_nonce = secrets.token_bytes(_NONCE)
    _send(sock, _MAGIC + listener_nonce, end)
    reply = _recv_exactly(sock, len(_MAGIC) + _NONCE + _PROOF + 1, end)
    magic, caller_nonce, proof = reply[:8], reply[8:40], reply[40:72]
    if magic != _MAGIC:
        raise HelloError("the caller uses another protocol or version")
    try:
        name = check_name(_recv_exactly(sock, min(reply[72], MOST_NAME), end).decode("ascii"))
    except ValueError as error:
        raise HelloError(f"the caller sent an invalid name: {error}") from None
    if not hmac.compare_digest(proof, _prove(token, b"caller", listener_nonce, caller_nonce, name)):
        raise HelloError("the caller has a different token")
    _send(sock, _prove(token, b"listener", listener_nonce, caller_nonce, name), end)
    return name


def say_hello(sock: socket.socket, token: bytes, name: str, timeout: float = HELLO_SECONDS) -> None:
    """The caller's side of the handshake: authenticate, send the name of the pipe, and authenticate the listener.

    HelloError if either side rejects the other, TimeoutError after `timeout` seconds.
    """
    end = time.monotonic() + timeout
    encoded = check_name(name).encode("ascii")
    greeting = _recv_exactly(sock, len(_MAGIC) + _NONCE, end)
    if greeting[:8] != _MAGIC:
        raise HelloError("the listener uses another protocol or version")
    listener_nonce, caller_nonce = greeting[8:], secrets.token_bytes(_NONCE)
    proof = _prove(token, b"caller", listener_nonce, caller_nonce, name)
    _send(sock, _MAGIC + caller_nonce + proof + bytes([len(encoded)]) + encoded, end)
    if not hmac.compare_digest(
        _recv_exactly(sock, _PROOF, end), _prove(token, b"listener", listener_nonce, caller_nonce, name)
    ):
        raise HelloError("the listener has a different token")


def _prove(token: bytes, role: bytes, listener: bytes, caller: bytes, name: str) -> bytes:
    return hmac.digest(token, b"fragmenta " + role + b" " + listener + caller + name.encode("ascii"), "sha256")


def _send(sock: socket.socket, content: bytes, end: float) -> None:
    try:
        sock.settimeout(max(end - time.monotonic(), 0.001))
        sock.sendall(content)
    except TimeoutError:
        raise
    except OSError as error:
        raise HelloError(f"the peer closed the connection: {error}") from None


def _recv_exactly(sock: socket.socket, count: int, end: float) -> bytes:
    content = b""
    while len(content) < count:
        try:
            sock.settimeout(max(end - time.monotonic(), 0.001))
            more = sock.recv(count - len(content))
        except TimeoutError:
            raise TimeoutError("the peer did not complete the handshake in time") from None
        except OSError as error:
            raise HelloError(f"the peer closed the connection: {error}") from None
        if not more:
            raise HelloError("the peer closed the connection: it has a different token, or no pipe of this name")
        content += more
    return content
