"""A channel within one process: values are handed over by reference."""

import collections
import threading
import time
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

    def close(self) -> None:
        """Wake everyone who waits, and let nobody wait again."""
        ...


class MemoryChannel:
    """A bounded queue that can be closed from any thread."""

    def __init__(self, capacity: int = 2) -> None:
        self._capacity = capacity
        self._values: collections.deque[Any] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False

    def send(self, value: Any, timeout: float) -> None:
        """Hand over a value by reference."""
        with self._changed:
            self._wait(lambda: len(self._values) < self._capacity, timeout)
            self._values.append(value)
            self._changed.notify_all()

    def recv(self, timeout: float) -> Any:
        """The oldest value that was not received yet."""
        with self._changed:
            self._wait(lambda: bool(self._values), timeout)
            value = self._values.popleft()
            self._changed.notify_all()
            return value

    def close(self) -> None:
        """Drop what is left and wake everyone."""
        with self._changed:
            self._closed = True
            self._values.clear()
            self._changed.notify_all()

    def _wait(self, ready: Any, timeout: float) -> None:
        end = time.monotonic() + timeout
        while not self._closed and not ready():
            left = end - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                if ready() or self._closed:
                    break
                raise TimeoutError
        if self._closed:
            raise ClosedError
