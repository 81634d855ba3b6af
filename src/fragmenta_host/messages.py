"""Small messages between a process and its worker: a length, JSON, and now and then a file descriptor."""

import array
import json
import socket
import struct
from typing import Any


def send(connection: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send a message, and give the other side its own copies of the descriptors."""
    body = json.dumps(message).encode()
    head = struct.pack("<I", len(body))
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([head], ancillary)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors. EOFError if the other side is gone, TimeoutError past the socket's time."""
    descriptors = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_LEN(4 * descriptors.itemsize))
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    head += exactly(connection, 4 - len(head)) if head else b""
    if not head:
        raise EOFError
    return json.loads(exactly(connection, struct.unpack("<I", head)[0])), list(descriptors)


def exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or EOFError."""
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found
