"""What a pipe is: messages of bytes from one process to another."""

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fragmenta.worker.channels.memory import ClosedError

BIG = 1 << 15
"""Above this, copies let other threads run meanwhile."""


class Pipe(Protocol):
    """Messages from one process to another, in order and bounded: one end sends, the other receives.

    Any thread may call any method. TimeoutError past the time; ClosedError once this end is closed, and once the other
    is closed or gone and everything that it had sent was received.
    """

    def send(self, parts: Sequence[bytes | memoryview], timeout: float) -> None:
        """Send one message; wait while there is no place. The parts must not change until they have arrived."""
        ...

    def recv(self, timeout: float) -> memoryview:
        """The next message, in memory that is the caller's own; its place is free again."""
        ...

    def take(self, timeout: float) -> memoryview:
        """The next message as from `recv`, but its place stays taken until `free`."""
        ...

    def free(self) -> None:
        """Give back the place of the message that was taken."""
        ...

    def fill(self) -> float:
        """The share of its places that are taken, from 0 to 1; a glance that waits for nobody."""
        ...

    def drain(self, timeout: float) -> None:
        """Wait until the places of all that was sent are free again: everything has arrived."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether this end was closed."""
        ...

    def close(self) -> None:
        """Wake everyone on this side; the other side notices. What has not arrived may be lost: `drain` first."""
        ...


def take_turn(lock: threading.Lock, timeout: float) -> float:
    """Take the lock of one direction of a pipe; until when whoever has it may wait."""
    end = time.monotonic() + timeout
    if not lock.acquire(blocking=False) and not lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
        raise TimeoutError
    return end


def time_left(end: float, at_most: float) -> float:
    """Seconds to wait, no more than `at_most`; TimeoutError if there are none."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return min(seconds, at_most)


def check_size(parts: Sequence[bytes | memoryview], size: int) -> int:
    """The bytes of a message, which must be no more than the pipe takes."""
    length = sum(map(len, parts))
    if length > size:
        raise ValueError(f"a message of {length} bytes does not fit: this pipe was made for {size}")
    return length


def new_memory(length: int) -> memoryview:
    """Fresh memory that begins where arrays like to begin, if it is large."""
    if length < BIG:
        return memoryview(bytearray(length))
    raw = np.empty(length + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + length].data


__all__ = ["BIG", "ClosedError", "Pipe", "check_size", "new_memory", "take_turn", "time_left"]
