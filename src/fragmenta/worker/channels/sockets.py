"""A pipe over a TCP connection: a length and the message; one byte comes back for every place that is free again."""

import collections
import contextlib
import select
import socket
import struct
import threading
from collections.abc import Sequence

from fragmenta.worker.channels.connection import GONE_SECONDS, End
from fragmenta.worker.channels.pipe import ClosedError, check_size, new_memory, take_turn
from fragmenta.worker.channels.wire import WireError

INLINE = 1 << 16
"""Messages up to this size are sent by whoever calls; larger ones by a thread of the pipe."""
_LENGTH = struct.Struct("<Q")
_MOST_PARTS = 512


class SocketSender(End):
    """The end that sends."""

    def __init__(self, size: int, capacity: int) -> None:
        super().__init__(size, capacity)
        self._away = 0
        """Messages that are not free yet on the other side."""
        self._unsent: collections.deque[list[memoryview]] = collections.deque()
        self._work = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_broken = False

    def send(self, parts: Sequence[bytes | memoryview], timeout: float) -> None:
        """Send at once if it is small, else leave it to the thread."""
        length = check_size(parts, self._size)
        end = take_turn(self._lock, timeout)
        try:
            self._await_free(end, self._capacity - 1)
            rest = [memoryview(part) for part in (_LENGTH.pack(length), *parts) if len(part)]
            self._away += 1
            if self._thread is None and length <= INLINE:
                rest = self._send_some(rest)
            if rest:
                # Once there is a thread everything goes through it: the order must stay.
                with self._work:
                    self._unsent.append(rest)
                    self._work.notify()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._send_all, name="fragmenta-socket", daemon=True)
                    self._thread.start()
        finally:
            self._lock.release()

    def fill(self) -> float:
        """Messages whose places the other side has not given back, as far as this side has heard."""
        if self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(ClosedError):
                    self._read_freed()
            finally:
                self._lock.release()
        return self._away / self._capacity

    def drain(self, timeout: float) -> None:
        """Wait until all places are free."""
        end = take_turn(self._lock, timeout)
        try:
            self._await_free(end, 0)
        finally:
            self._lock.release()

    def recv(self, timeout: float) -> memoryview:
        """Refused: this end sends."""
        raise RuntimeError("this end of the pipe sends")

    take = recv

    def free(self) -> None:
        """Refused: this end sends."""
        raise RuntimeError("this end of the pipe sends")

    def _await_free(self, end: float, at_most: int) -> None:
        if self._closed or self._is_broken:
            raise ClosedError
        while self._away > at_most:
            self._await(select.POLLIN, end)
            self._read_freed()

    def _read_freed(self) -> None:
        if self._connection is None or self._closed:
            raise ClosedError
        try:
            found = len(self._connection.recv(4096))
        except BlockingIOError:
            return
        except OSError:
            raise ClosedError from None
        if not found:
            raise ClosedError
        if found > self._away:
            raise WireError(f"the other side gave back {found} places of {self._away}")
        self._away -= found

    def _send_some(self, rest: list[memoryview]) -> list[memoryview]:
        """What is left after the connection took as much as it would."""
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
        """Run by the thread: send what waits until the pipe is closed."""
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
                    self._connection.shutdown(socket.SHUT_RDWR)  # so that who waits for a place wakes

    def _leave(self) -> None:
        with self._work:
            self._work.notify_all()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()


class SocketReceiver(End):
    """The end that receives. Its connection may come later."""

    def __init__(self, size: int, capacity: int) -> None:
        super().__init__(size, capacity)
        self._scratch = bytearray(INLINE)
        """What was read and is not part of a message yet: between `_start` and `_stop`."""
        self._start = self._stop = 0
        self._message: memoryview | None = None
        self._filled = 0
        self._taken = False

    def attach(self, connection: socket.socket) -> bool:
        """Use this connection from now on."""
        if not super().attach(connection):
            return False
        # Bytes that go back are few and always taken, so silence means that nobody is there. (Not so for the sender:
        # the system would end a connection whose reader is merely slow.)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(GONE_SECONDS * 1000))
        return True

    def recv(self, timeout: float) -> memoryview:
        """The next message."""
        return self._receive(timeout, frees=True)

    def take(self, timeout: float) -> memoryview:
        """The next message, whose place stays taken until `free`."""
        return self._receive(timeout, frees=False)

    def free(self) -> None:
        """Let the sender send another."""
        with self._lock:
            self._free()

    def fill(self) -> float:
        """1 if something has come that was not received, else 0: what is under way cannot be seen from here."""
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
        """Refused: this end receives."""
        raise RuntimeError("this end of the pipe receives")

    def drain(self, timeout: float) -> None:
        """Refused: this end receives."""
        raise RuntimeError("this end of the pipe receives")

    def _free(self) -> None:
        if not self._taken:
            raise RuntimeError("no message was taken")
        if self._closed or self._connection is None:
            raise ClosedError
        self._taken = False
        with contextlib.suppress(OSError):  # a sender that is gone needs no place; `recv` will notice
            self._connection.send(b"\0")

    def _receive(self, timeout: float, frees: bool) -> memoryview:
        end = take_turn(self._lock, timeout)
        try:
            if self._closed:
                raise ClosedError
            if self._taken:
                raise RuntimeError("the last message's place was not given back: call `free` first")
            message = self._read(end)
            self._taken = True
            if frees:
                self._free()
            return message
        finally:
            self._lock.release()

    def _read(self, end: float) -> memoryview:
        """The next message; past the time, what has come of it stays for the next call."""
        while self._message is None:
            if self._stop - self._start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._scratch, self._start)
                if length > self._size:
                    raise WireError(f"a message of {length} bytes in a pipe that was made for {self._size}")
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
            found = connection.recv_into(memory)
        except BlockingIOError:
            return 0
        except OSError:
            raise ClosedError from None
        if not found:
            raise ClosedError
        return found
