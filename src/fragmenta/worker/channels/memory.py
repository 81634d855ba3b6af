"""A channel within one process: values are passed by reference."""

import queue
from typing import Any, Protocol


class ClosedError(Exception):
    """The peer is gone or the channel was closed: the run is ending."""


class End(Protocol):
    """One end of a channel, which carries the values of one interface from one replica to another, in order."""

    def fill(self) -> float:
        """The share of occupied slots, from 0 to 1; never blocks, so it may be out of date."""
        ...

    def close(self) -> None:
        """Wake all waiting threads; later waits fail at once."""
        ...


class Sender(End, Protocol):
    """The end that sends."""

    def send(self, value: Any, timeout: float) -> None:
        """Send a value; waits while it is full. TimeoutError after `timeout` seconds, ClosedError once closed."""
        ...


class Receiver(End, Protocol):
    """The end that receives."""

    def recv(self, timeout: float) -> Any:
        """The next value; waits while there is none. TimeoutError after `timeout` seconds, ClosedError once closed."""
        ...


class MemoryChannel:
    """Both ends at once: a bounded queue that can be closed from any thread.

    It uses two SimpleQueues (in C), one of values and one of free slots: half the latency of a condition variable.
    """

    def __init__(self, capacity: int = 2) -> None:
        self._values: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._slots: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = False
        self._capacity = capacity
        for _ in range(capacity):
            self._slots.put(None)

    def send(self, value: Any, timeout: float) -> None:
        """Pass a value by reference."""
        self._take_from(self._slots, timeout)
        self._values.put(value)

    def recv(self, timeout: float) -> Any:
        """The oldest value not received yet."""
        value = self._take_from(self._values, timeout)
        self._slots.put(None)
        return value

    def fill(self) -> float:
        """Values not received yet, relative to the capacity."""
        return min(self._values.qsize() / self._capacity, 1.0)

    def close(self) -> None:
        """Wake all waiting threads; values not received yet are lost."""
        self._closed = True
        self._values.put(None)
        self._slots.put(None)

    def _take_from(self, source: "queue.SimpleQueue[Any]", timeout: float) -> Any:
        try:
            item = source.get(timeout=None if timeout == float("inf") else timeout)
        except queue.Empty:
            raise TimeoutError from None
        if self._closed:
            source.put(None)  # wakes the next waiting thread
            raise ClosedError
        return item
