"""How two processes that share a token make sure of each other at the start of a connection.

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
"""A stranger who says nothing is dropped after this."""
_MAGIC = b"FRGHELO\x01"
_NONCE = _PROOF = 32
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:>~\[\]-]*")


class HelloError(ConnectionError):
    """The other side is not who it should be; says why."""


def check_name(name: str) -> str:
    """The name, if it is one: letters, digits and `_.:>~[]-`, no `..`, at most 200 of them."""
    if len(name) > MOST_NAME or not _NAME.fullmatch(name) or ".." in name:
        raise ValueError(f"{name[:MOST_NAME]!r} is no name for a pipe: use letters, digits and _ . : > ~ [ ] -")
    return name


def accept_hello(sock: socket.socket, token: bytes, timeout: float = HELLO_SECONDS) -> str:
    """On the side that listens: the name that the caller gives.

    HelloError if it is a stranger, TimeoutError past the time.
    """
    end = time.monotonic() + timeout
    ours = secrets.token_bytes(_NONCE)
    _send(sock, _MAGIC + ours, end)
    said = _exactly(sock, len(_MAGIC) + _NONCE + _PROOF + 1, end)
    magic, theirs, proof = said[:8], said[8:40], said[40:72]
    if magic != _MAGIC:
        raise HelloError("the caller speaks another language")
    try:
        name = check_name(_exactly(sock, min(said[72], MOST_NAME), end).decode("ascii"))
    except ValueError as error:
        raise HelloError(f"the caller gives a name that is none: {error}") from None
    if not hmac.compare_digest(proof, _prove(token, b"caller", ours, theirs, name)):
        raise HelloError("the caller has another token")
    _send(sock, _prove(token, b"listener", ours, theirs, name), end)
    return name


def say_hello(sock: socket.socket, token: bytes, name: str, timeout: float = HELLO_SECONDS) -> None:
    """On the side that calls: prove who we are, say what the connection is for, and make sure of the listener.

    HelloError if it is a stranger or takes us for one, TimeoutError past the time.
    """
    end = time.monotonic() + timeout
    encoded = check_name(name).encode("ascii")
    said = _exactly(sock, len(_MAGIC) + _NONCE, end)
    if said[:8] != _MAGIC:
        raise HelloError("the listener speaks another language")
    theirs, ours = said[8:], secrets.token_bytes(_NONCE)
    proof = _prove(token, b"caller", theirs, ours, name)
    _send(sock, _MAGIC + ours + proof + bytes([len(encoded)]) + encoded, end)
    if not hmac.compare_digest(_exactly(sock, _PROOF, end), _prove(token, b"listener", theirs, ours, name)):
        raise HelloError("the listener has another token")


def _prove(token: bytes, role: bytes, listener: bytes, caller: bytes, name: str) -> bytes:
    return hmac.digest(token, b"fragmenta " + role + b" " + listener + caller + name.encode("ascii"), "sha256")


def _send(sock: socket.socket, content: bytes, end: float) -> None:
    try:
        sock.settimeout(max(end - time.monotonic(), 0.001))
        sock.sendall(content)
    except TimeoutError:
        raise
    except OSError as error:
        raise HelloError(f"the other side hung up: {error}") from None


def _exactly(sock: socket.socket, count: int, end: float) -> bytes:
    found = b""
    while len(found) < count:
        try:
            sock.settimeout(max(end - time.monotonic(), 0.001))
            more = sock.recv(count - len(found))
        except TimeoutError:
            raise TimeoutError("the other side did not say who it is in time") from None
        except OSError as error:
            raise HelloError(f"the other side hung up: {error}") from None
        if not more:
            raise HelloError("the other side hung up: it has another token, or does not know this name")
        found += more
    return found
