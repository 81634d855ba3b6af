"""The coordinator's end of a process: orders and answers, reports, signs of life."""

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

from fragmenta.worker.channels.wire import pack, unpack

_HEAD = struct.Struct("<IQ")
MOST_BYTES = 1 << 36


class Connection:
    """Messages over a socket: JSON, and arrays as raw bytes. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock = sock, threading.Lock()
        self.heard = time.monotonic()
        """When the last byte came: a large message that is still on its way is a sign of life, too."""
        sock.settimeout(None)

    @property
    def address(self) -> str:
        """This side's address: one at which the other side can reach this machine."""
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
        text, raw = _HEAD.unpack(self._exactly(_HEAD.size))
        if raw > MOST_BYTES:
            raise EOFError
        message = json.loads(bytes(self._exactly(text)))
        return message, unpack(self._exactly(raw))[0] if raw else []

    def _exactly(self, count: int) -> memoryview:
        found = memoryview(bytearray(count))
        at = 0
        while at < count:
            try:
                more = self._socket.recv_into(found[at:])
            except OSError:
                raise EOFError from None
            if not more:
                raise EOFError
            self.heard = time.monotonic()
            at += more
        return found

    def close(self) -> None:
        """Hang up; whoever receives on either side gets EOFError."""
        with contextlib.suppress(OSError):  # the other side may be first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class LostError(Exception):
    """A process is gone or does not answer."""


class FailedError(Exception):
    """A process raised an error; has its kind and its traceback as text."""

    def __init__(self, worker: str, kind: str, message: str, trace: str) -> None:
        super().__init__(message)
        self.worker, self.kind, self.trace = worker, kind, trace


Inbox = queue.SimpleQueue[tuple["Peer", dict[str, Any] | None, list[np.ndarray]]]
"""Reports of all processes, in the order in which they come; with no message, word of a loss."""


class Peer:
    """One process as the coordinator sees it. `how_it_ended` is asked once its connection is gone."""

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
        """Its number, its worker's name, what it said of itself, and once it is lost, how."""
        self.is_ready = False
        """Whether it has compiled its fragment."""
        self._inbox, self._how_it_ended = inbox, how_it_ended
        self.doing = ""
        self._connection, self._numbers = connection, itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name=f"fragmenta-hears-{name}", daemon=True)
        self._reader.start()

    @property
    def silent(self) -> float:
        """For how many seconds it has given no sign of life."""
        return time.monotonic() - self._connection.heard

    def order(self, what: str, arrays: Sequence[np.ndarray] = (), **details: Any) -> int:
        """Send an order; its number, for `answer`."""
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
        """The answer to an order. LostError if there is none, FailedError if it failed there."""
        try:
            found = self._waiting[number].get(timeout=timeout)
        except queue.Empty:
            raise LostError(f"{self.name} did not answer within {timeout:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if found is None:
            raise LostError(f"{self.name} {self.lost}")
        message, arrays = found
        if "failed" in message:
            raise self.failure(message)
        return message, arrays

    def failure(self, message: dict[str, Any]) -> "FailedError":
        """The error that a message tells of."""
        return FailedError(self.name, message["kind"], message["failed"], message["trace"])

    def ask(
        self, what: str, timeout: float, arrays: Sequence[np.ndarray] = (), **details: Any
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Order and wait."""
        return self.answer(self.order(what, arrays, **details), timeout)

    def tell(self, what: str, **details: Any) -> None:
        """Send a word that is not answered."""
        try:
            self._connection.send({"order": what, **details})
        except OSError:
            self._hung_up()

    def lose(self, how: str) -> None:
        """From now on every wait for it ends with LostError."""
        with self._lock:
            if self.lost:
                return
            self.lost = how
            waiting = list(self._waiting.values())
        for each in waiting:
            each.put(None)
        self._inbox.put((self, None, []))
        self._connection.close()

    def forget(self) -> None:
        """Wait for the thread that hears it, which ends once it is lost."""
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
                if waiting is not None:
                    waiting.put((message, arrays))
                if "failed" in message:
                    self._inbox.put((self, message, []))
            elif "report" in message:
                self._inbox.put((self, message, arrays))
            elif "doing" in message:
                self.doing = message["doing"]
