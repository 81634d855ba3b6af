"""The interface of a pipe, byte messages from one process to another, and the thread that empties or fills one."""

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fragmenta.worker.channels.memory import ClosedError

FOREVER = float("inf")
LOOK_SECONDS = 0.2
"""How often a pump that waits for a new bundle checks whether its pipe is still open."""
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


def check_size(length: int, size: int) -> None:
    """ValueError if a message of that many bytes exceeds the size of the pipe's slots."""
    if length > size:
        raise ValueError(f"a message of {length} bytes exceeds this pipe's maximum of {size} bytes")


def new_memory(length: int) -> memoryview:
    """New memory, aligned to 64 bytes if it is large."""
    if length < BIG:
        return memoryview(bytearray(length))
    raw = np.empty(length + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + length].data


class Pump(threading.Thread):
    """A thread that moves bundles between a pipe and a mailbox until one of them is closed."""

    def __init__(self, pipe: Pipe, step: Callable[[], None], leave: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="fragmenta-pump", daemon=True)
        self._pipe, self._step, self._leave = pipe, step, leave
        self.start()

    def run(self) -> None:
        """Move bundles."""
        try:
            while True:
                self._step()
        except ClosedError:
            pass
        except Exception:
            traceback.print_exc()  # a message of another version, or damaged
        self._pipe.close()  # so that the peer does not wait forever

    def close(self) -> None:
        """Close the pipe, withdraw from the mailbox, and wait for the thread to end."""
        self._pipe.close()
        while self.is_alive():
            self._leave()  # repeated, in case the thread was just about to wait
            self.join(LOOK_SECONDS)
