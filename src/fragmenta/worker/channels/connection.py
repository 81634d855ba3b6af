"""The common base of both ends of a TCP pipe: one connection that any thread can close, and detection of lost peers."""

import contextlib
import math
import select
import socket
import struct
import threading
import time

from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.channels.pipe import time_left

GONE_SECONDS = 15.0
"""How long a peer may be unreachable: shorter network outages are survived, a lost machine is detected."""
LOOK_SECONDS = 1.0
"""How often a waiting thread checks whether the peer is still reachable."""
_INFO = struct.Struct("<xxBB52xI")
"""Fields of Linux' tcp_info: unanswered retransmissions, unanswered window probes, milliseconds since the last ACK."""


class SocketEnd:
    """Base of both ends: one connection, and one lock for the thread that uses it."""

    def __init__(self, size: int, capacity: int) -> None:
        if size < 1 or capacity < 1:
            raise ValueError(f"a pipe of {capacity} slots of {size} bytes: give at least 1 of each")
        self._size, self._capacity = size, capacity
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._closed = False
        self._connected = threading.Event()
        self._connection: socket.socket | None = None

    @property
    def is_closed(self) -> bool:
        """Whether this end is closed."""
        return self._closed

    def attach(self, connection: socket.socket) -> bool:
        """Use this connection from now on; False if there already is one, or the pipe is closed."""
        with self._closing:
            if self._closed or self._connection is not None:
                return False
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (
                (socket.TCP_KEEPIDLE, int(GONE_SECONDS / 3)),
                (socket.TCP_KEEPINTVL, int(GONE_SECONDS / 6)),
                (socket.TCP_KEEPCNT, 4),
            ):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            self._connection = connection
            self._connected.set()
            return True

    def _await(self, event: int, end: float) -> socket.socket:
        """Wait until the connection is ready for reading or writing."""
        while not self._connected.is_set():
            self._connected.wait(time_left(end, LOOK_SECONDS))
        if self._closed or self._connection is None:
            raise ClosedError
        poll = select.poll()
        poll.register(self._connection, event)
        seconds = min(max(end - time.monotonic(), 0.0), LOOK_SECONDS)
        while not poll.poll(math.ceil(seconds * 1000)):
            if self._closed or _is_unreachable(self._connection):
                raise ClosedError
            seconds = time_left(end, LOOK_SECONDS)
        if self._closed:
            raise ClosedError
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._connected.set()
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)  # wakes waiting threads, which close() would not
            self._join_threads()
            with self._lock:
                if self._connection is not None:
                    self._connection.close()

    def _join_threads(self) -> None:
        """Wait for other threads that use the connection."""


def _is_unreachable(connection: socket.socket) -> bool:
    """Whether the peer has stopped answering. The kernel of a peer that is merely slow to read still answers."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:
        return True
    retransmissions, probes, since = _INFO.unpack(info)
    return retransmissions + probes >= 3 and since >= GONE_SECONDS * 1000
