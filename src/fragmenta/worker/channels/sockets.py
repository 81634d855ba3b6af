"""A pipe over TCP: each message is sent after its length; one byte comes back for every freed slot."""

import collections
import contextlib
import select
import socket
import struct
import threading
from collections.abc import Sequence

from fragmenta.worker.channels.connection import GONE_SECONDS, SocketEnd
from fragmenta.worker.channels.memory import ClosedError
from fragmenta.worker.channels.pipe import check_size, new_memory, take_turn
from fragmenta.worker.channels.wire import WireError

INLINE = 1 << 16
"""Messages up to this size are sent by the calling thread; larger ones by the pipe's own thread."""
_LENGTH = struct.Struct("<Q")
_MOST_PARTS = 512


class SocketSender(SocketEnd):
    """The sending end."""

    def __init__(self, size: int, capacity: int) -> None:
        super().__init__(size, capacity)
        self._occupied = 0
        """Messages whose slots the receiver has not freed yet."""
        self._unsent: collections.deque[list[memoryview]] = collections.deque()
        self._work = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_broken = False

    def send(self, parts: Sequence[bytes | memoryview], timeout: float) -> None:
        """Send a small message at once, leave a large one to the thread."""
        length = sum(map(len, parts))
        check_size(length, self._size)
        end = take_turn(self._lock, timeout)
        try:
            self._await_free(end, self._capacity - 1)
            rest = [memoryview(part) for part in (_LENGTH.pack(length), *parts) if len(part)]
            self._occupied += 1
            if self._thread is None and length <= INLINE:
                rest = self._send_some(rest)
            if rest:
                # Once there is a thread, everything goes through it to keep the order.
                with self._work:
                    self._unsent.append(rest)
                    self._work.notify()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._send_all, name="fragmenta-socket", daemon=True)
                    self._thread.start()
        finally:
            self._lock.release()

    def fill(self) -> float:
        """Occupied slots, as far as this side knows, relative to the capacity."""
        if self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(ClosedError):
                    self._read_freed()
            finally:
                self._lock.release()
        return self._occupied / self._capacity

    def drain(self, timeout: float) -> None:
        """Wait until all slots are free."""
        end = take_turn(self._lock, timeout)
        try:
            self._await_free(end, 0)
        finally:
            self._lock.release()

    def recv(self, timeout: float) -> memoryview:
        """Not supported: this end sends."""
        raise RuntimeError("this end of the pipe sends")

    take = recv

    def free(self) -> None:
        """Not supported: this end sends."""
        raise RuntimeError("this end of the pipe sends")

    def _await_free(self, end: float, at_most: int) -> None:
        if self._closed or self._is_broken:
            raise ClosedError
        while self._occupied > at_most:
            self._await(select.POLLIN, end)
            self._read_freed()

    def _read_freed(self) -> None:
        if self._connection is None or self._closed:
            raise ClosedError
        try:
            freed = len(self._connection.recv(4096))
        except BlockingIOError:
            return
        except OSError:
            raise ClosedError from None
        if not freed:
            raise ClosedError
        if freed > self._occupied:
            raise WireError(f"the receiver freed {freed} slots, but only {self._occupied} were occupied")
        self._occupied -= freed

    def _send_some(self, rest: list[memoryview]) -> list[memoryview]:
        """Write as much as the connection accepts without blocking; returns the rest."""
        if self._connection is None:
            raise ClosedError
        try:
            sent = self._connection.sendmsg(rest[:_MOST_PARTS])
        except BlockingIOError:
            return rest
        except OSError:
            raise ClosedError from None
        for i, part in enumerate(rest):
            if sent < len(part):
                return [part[sent:], *rest[i + 1 :]]
            sent -= len(part)
        return []

    def _send_all(self) -> None:
        """Run by the thread: send queued messages until the pipe is closed."""
        try:
            while True:
                with self._work:
                    while not self._unsent:
                        if self._closed:
                            return
                        self._work.wait()
                    rest = self._unsent.popleft()
                while rest:
                    self._await(select.POLLOUT, float("inf"))
                    rest = self._send_some(rest)
        except ClosedError:
            self._is_broken = True
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)  # wakes threads that wait for a free slot

    def _join_threads(self) -> None:
        with self._work:
            self._work.notify_all()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()


class SocketReceiver(SocketEnd):
    """The receiving end. Its connection may be attached later."""

    def __init__(self, size: int, capacity: int) -> None:
        super().__init__(size, capacity)
        self._scratch = bytearray(INLINE)
        """Bytes between `_start` and `_stop` have been read but do not belong to a message yet."""
        self._start = self._stop = 0
        self._message: memoryview | None = None
        self._filled = 0
        self._taken = False

    def attach(self, connection: socket.socket) -> bool:
        """Use this connection from now on."""
        if not super().attach(connection):
            return False
        # The few bytes that go back are always read, so missing ACKs mean that the peer is dead. (Not set for the
        # sender: the kernel would close a connection whose reader is merely slow.)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(GONE_SECONDS * 1000))
        return True

    def recv(self, timeout: float) -> memoryview:
        """The next message."""
        return self._receive(timeout, frees=True)

    def take(self, timeout: float) -> memoryview:
        """The next message; its slot stays occupied until `free`."""
        return self._receive(timeout, frees=False)

    def free(self) -> None:
        """Free the slot, so that the sender can send another message."""
        with self._lock:
            self._free()

    def fill(self) -> float:
        """1 if unread data has arrived, else 0: messages still in transit cannot be seen from here."""
        connection = self._connection
        if connection is None or self._closed:
            return 0.0
        if self._taken or self._start < self._stop or self._message is not None:
            return 1.0
        try:
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            return float(bool(poll.poll(0)))
        except (OSError, ValueError):
            return 0.0

    def send(self, parts: Sequence[bytes | memoryview], timeout: float) -> None:
        """Not supported: this end receives."""
        raise RuntimeError("this end of the pipe receives")

    def drain(self, timeout: float) -> None:
        """Not supported: this end receives."""
        raise RuntimeError("this end of the pipe receives")

    def _free(self) -> None:
        if not self._taken:
            raise RuntimeError("no message was taken")
        if self._closed or self._connection is None:
            raise ClosedError
        self._taken = False
        with contextlib.suppress(OSError):  # a dead sender needs no slot; `recv` will notice
            self._connection.send(b"\0")

    def _receive(self, timeout: float, frees: bool) -> memoryview:
        end = take_turn(self._lock, timeout)
        try:
            if self._closed:
                raise ClosedError
            if self._taken:
                raise RuntimeError("the slot of the last message is still occupied: call `free` first")
            message = self._read(end)
            self._taken = True
            if frees:
                self._free()
            return message
        finally:
            self._lock.release()

    def _read(self, end: float) -> memoryview:
        """The next message; on timeout, the bytes read so far are kept for the next call."""
        while self._message is None:
            if self._stop - self._start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._scratch, self._start)
                if length > self._size:
                    raise WireError(f"a message of {length} bytes exceeds this pipe's maximum of {self._size} bytes")
                self._start += _LENGTH.size
                self._filled = min(length, self._stop - self._start)
                self._message = new_memory(length)
                self._message[: self._filled] = memoryview(self._scratch)[self._start : self._start + self._filled]
                self._start += self._filled
            else:
                left = self._scratch[self._start : self._stop]
                self._scratch[: len(left)] = left
                self._start, self._stop = 0, len(left)
                self._stop += self._read_into(memoryview(self._scratch)[self._stop :], end)
        while self._filled < len(self._message):
            self._filled += self._read_into(self._message[self._filled :], end)
        message, self._message = self._message, None
        return message

    def _read_into(self, memory: memoryview, end: float) -> int:
        connection = self._await(select.POLLIN, end)
        try:
            count = connection.recv_into(memory)
        except BlockingIOError:
            return 0
        except OSError:
            raise ClosedError from None
        if not count:
            raise ClosedError
        return count
