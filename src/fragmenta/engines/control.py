"""The coordinator's connection to a process: orders and answers, reports, heartbeats."""

import contextlib
import itertools
import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragmenta.worker.channels.receiving import unpack
from fragmenta.worker.channels.sending import pack

_HEAD = struct.Struct("<IQ")
MOST_BYTES = 1 << 36


class Connection:
    """Messages over a socket: JSON, and arrays as raw bytes. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock = sock, threading.Lock()
        self.heard = time.monotonic()
        """When the last byte arrived: a large message in transit counts as a heartbeat, too."""
        sock.settimeout(None)

    @property
    def address(self) -> str:
        """The local address, at which the other side can reach this machine."""
        return self._socket.getsockname()[0]

    def send(self, message: dict[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
        """Send a message; OSError if the other side is gone."""
        text = json.dumps(message).encode()
        parts = pack(arrays) if arrays else []
        head = _HEAD.pack(len(text), sum(len(part) for part in parts))
        with self._lock:
            self._socket.sendall(head + text)
            for part in parts:
                self._socket.sendall(part)

    def receive(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """The next message; EOFError if the other side is gone."""
        text, raw = _HEAD.unpack(self._recv_exactly(_HEAD.size))
        if raw > MOST_BYTES:
            raise EOFError
        message = json.loads(bytes(self._recv_exactly(text)))
        return message, unpack(self._recv_exactly(raw))[0] if raw else []

    def _recv_exactly(self, count: int) -> memoryview:
        buffer = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            try:
                more = self._socket.recv_into(buffer[filled:])
            except OSError:
                raise EOFError from None
            if not more:
                raise EOFError
            self.heard = time.monotonic()
            filled += more
        return buffer

    def close(self) -> None:
        """Close the connection; `receive` raises EOFError on both sides."""
        with contextlib.suppress(OSError):  # the other side may have closed it first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class LostError(Exception):
    """A process died or does not answer."""


class FailedError(Exception):
    """A process raised an error; carries its type name and its traceback as text."""

    def __init__(self, worker: str, kind: str, message: str, trace: str) -> None:
        super().__init__(message)
        self.worker, self.kind, self.trace = worker, kind, trace


Inbox = queue.SimpleQueue[tuple["Peer", dict[str, Any] | None, list[np.ndarray]]]
"""Reports of all processes, in order of arrival; a message of None means that the process was lost."""


class Peer:
    """One process from the coordinator's view. `how_it_ended` is called when its connection is lost."""

    def __init__(
        self,
        index: int,
        name: str,
        connection: Connection,
        hello: dict[str, Any],
        inbox: Inbox,
        how_it_ended: Callable[[], str],
    ) -> None:
        self.index, self.name, self.hello, self.lost = index, name, hello, ""
        """Its index, its worker's name, its self-description, and how it was lost, if it was."""
        self.is_ready = False
        """Whether it has compiled its fragment."""
        self.failed: FailedError | None = None
        """The latest error that it raised."""
        self._inbox, self._how_it_ended = inbox, how_it_ended
        self.doing = ""
        self._connection, self._numbers = connection, itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=f"fragmenta-hears-{name}", daemon=True)
        self._reader.start()

    @property
    def silent(self) -> float:
        """Seconds since the last heartbeat."""
        return time.monotonic() - self._connection.heard

    def order(self, what: str, arrays: Sequence[np.ndarray] = (), **details: Any) -> int:
        """Send an order; returns its number, for `answer`."""
        number = next(self._numbers)
        with self._lock:
            self._waiting[number] = queue.SimpleQueue()
            if self.lost:
                self._waiting[number].put(None)
        try:
            self._connection.send({"order": what, "number": number, **details}, arrays)
        except OSError:
            self._hung_up()
        return number

    def answer(self, number: int, timeout: float) -> tuple[dict[str, Any], list[np.ndarray]]:
        """The answer to an order. LostError if there is none, FailedError if the order failed."""
        try:
            reply = self._waiting[number].get(timeout=timeout)
        except queue.Empty:
            raise LostError(f"{self.name} did not answer within {timeout:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if reply is None:
            raise LostError(f"{self.name} {self.lost}")
        message, arrays = reply
        if "failed" in message:
            raise self.failure(message)
        return message, arrays

    def failure(self, message: dict[str, Any]) -> "FailedError":
        """The error that a message describes."""
        return FailedError(self.name, message["kind"], message["failed"], message["trace"])

    def ask(
        self, what: str, timeout: float, arrays: Sequence[np.ndarray] = (), **details: Any
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Send an order and wait for its answer."""
        return self.answer(self.order(what, arrays, **details), timeout)

    def tell(self, what: str, arrays: Sequence[np.ndarray] = (), **details: Any) -> None:
        """Send an order that is not answered."""
        try:
            self._connection.send({"order": what, **details}, arrays)
        except OSError:
            self._hung_up()

    def lose(self, how: str) -> None:
        """Mark it as lost: current and later waits for it raise LostError."""
        with self._lock:
            if self.lost:
                return
            self.lost = how
            waiting = list(self._waiting.values())
        for answers in waiting:
            answers.put(None)
        self._inbox.put((self, None, []))
        self._connection.close()

    def forget(self) -> None:
        """Wait for its reader thread, which ends once the process is lost."""
        self._reader.join()

    def _hung_up(self) -> None:
        if not self.lost:
            self.lose(self._how_it_ended())

    def _read(self) -> None:
        while True:
            try:
                message, arrays = self._connection.receive()
            except (EOFError, ValueError):
                self._hung_up()
                return
            if "answers" in message:
                waiting = self._waiting.get(message["answers"])
                if "failed" in message:
                    self.failed = self.failure(message)
                if waiting is not None:
                    waiting.put((message, arrays))
                if "failed" in message:
                    self._inbox.put((self, message, []))
            elif "report" in message:
                self._inbox.put((self, message, arrays))
            elif "doing" in message:
                self.doing = message["doing"]
