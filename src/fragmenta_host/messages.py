"""Small messages to and from environment processes: a length, JSON, and sometimes a file descriptor."""

import array
import json
import socket
import struct
from typing import Any


def send(connection: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send a message, with copies of the descriptors for the other side."""
    body = json.dumps(message).encode()
    head = struct.pack("<I", len(body))
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([head], ancillary)
    connection.sendall(body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors; EOFError if the other side is gone, TimeoutError if it takes too long."""
    descriptors = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_LEN(4 * descriptors.itemsize))
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    head += receive_exactly(connection, 4 - len(head)) if head else b""
    if not head:
        raise EOFError
    return json.loads(receive_exactly(connection, struct.unpack("<I", head)[0])), list(descriptors)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Receive `count` bytes; EOFError if the other side is gone."""
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return received
