"""A channel within one process: values are handed over by reference."""

import queue
from typing import Any, Protocol


class ClosedError(Exception):
    """The other side is gone: the run is ending."""


class Channel(Protocol):
    """Carries the values of one interface from one replica to another, in order."""

    def send(self, value: Any, timeout: float) -> None:
        """Hand over a value; wait while the channel is full. TimeoutError past the time, ClosedError once closed."""
        ...

    def recv(self, timeout: float) -> Any:
        """The next value; wait while there is none. TimeoutError past the time, ClosedError once closed."""
        ...

    def fill(self) -> float:
        """The share of its places that are taken, from 0 to 1; a glance that waits for nobody."""
        ...

    def close(self) -> None:
        """Wake everyone who waits, and let nobody wait again."""
        ...


class MemoryChannel:
    """A bounded queue that can be closed from any thread.

    Two of Python's C queues, one of values and one of free places: a hand-over takes half as long as with a condition.
    """

    def __init__(self, capacity: int = 2) -> None:
        self._values: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._places: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = False
        self._capacity = capacity
        for _ in range(capacity):
            self._places.put(None)

    def send(self, value: Any, timeout: float) -> None:
        """Hand over a value by reference."""
        self._take_from(self._places, timeout)
        self._values.put(value)

    def recv(self, timeout: float) -> Any:
        """The oldest value that was not received yet."""
        value = self._take_from(self._values, timeout)
        self._places.put(None)
        return value

    def fill(self) -> float:
        """Values that were not received yet, of as many as it takes."""
        return min(self._values.qsize() / self._capacity, 1.0)

    def close(self) -> None:
        """Wake everyone; values that were not received are lost."""
        self._closed = True
        self._values.put(None)
        self._places.put(None)

    def _take_from(self, source: "queue.SimpleQueue[Any]", timeout: float) -> Any:
        try:
            item = source.get(timeout=None if timeout == float("inf") else timeout)
        except queue.Empty:
            raise TimeoutError from None
        if self._closed:
            source.put(None)  # for the next one who waits here
            raise ClosedError
        return item
