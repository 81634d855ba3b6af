"""The interface of a pipe: byte messages from one process to another."""

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fragmenta.worker.channels.memory import ClosedError

BIG = 1 << 15
"""Copies above this size release the GIL."""


class Pipe(Protocol):
    """A bounded, ordered queue of messages from one process to another: one end sends, the other receives.

    All methods are thread-safe. TimeoutError after `timeout` seconds; ClosedError once this end is closed, or once the
    other end is closed or dead and everything that it sent has been received.
    """

    def send(self, parts: Sequence[bytes | memoryview], timeout: float) -> None:
        """Send one message; waits while all slots are occupied. The parts must not change until they have arrived."""
        ...

    def recv(self, timeout: float) -> memoryview:
        """The next message, in memory that the caller owns; frees its slot."""
        ...

    def take(self, timeout: float) -> memoryview:
        """Like `recv`, but the slot stays occupied until `free`."""
        ...

    def free(self) -> None:
        """Free the slot of the message from `take`."""
        ...

    def fill(self) -> float:
        """The share of occupied slots, from 0 to 1; never blocks, so it may be out of date."""
        ...

    def drain(self, timeout: float) -> None:
        """Wait until all slots are free again: everything sent has arrived."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether this end is closed."""
        ...

    def close(self) -> None:
        """Close this end and wake its waiting threads. Messages that have not arrived may be lost: `drain` first."""
        ...


def take_turn(lock: threading.Lock, timeout: float) -> float:
    """Acquire the lock of one direction of a pipe; returns the deadline (monotonic time) of the operation."""
    end = time.monotonic() + timeout
    if not lock.acquire(blocking=False) and not lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
        raise TimeoutError
    return end


def time_left(end: float, at_most: float) -> float:
    """Seconds left until `end`, at most `at_most`; TimeoutError if none are left."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return min(seconds, at_most)


def check_size(parts: Sequence[bytes | memoryview], size: int) -> int:
    """The length of a message in bytes; ValueError if it exceeds the size of the pipe's slots."""
    length = sum(map(len, parts))
    if length > size:
        raise ValueError(f"a message of {length} bytes exceeds this pipe's maximum of {size} bytes")
    return length


def new_memory(length: int) -> memoryview:
    """New memory, aligned to 64 bytes if it is large."""
    if length < BIG:
        return memoryview(bytearray(length))
    raw = np.empty(length + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + length].data


__all__ = ["BIG", "ClosedError", "Pipe", "check_size", "new_memory", "take_turn", "time_left"]
