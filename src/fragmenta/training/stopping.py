"""End a run early and cleanly: on Ctrl-C, or on the signal that precedes a preemption."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Stop:
    """A request to end after the current iteration."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.reason = ""
        """Why a callback, or the return that was reached, ends the run."""

    def __bool__(self) -> bool:
        return self.signal is not None or bool(self.reason)


class StoppedError(Exception):
    """The run was ended early, after its state was saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class NotFiniteError(Exception):
    """Parameters or losses are NaN or Inf; names the stage that produced them and how to continue."""


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Within this context, the first SIGINT or SIGTERM requests a stop, and the second ends the program at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set signal handlers
        return

    def request_stop(number: int, _: FrameType | None) -> None:
        if stop.signal is not None:
            raise KeyboardInterrupt
        stop.signal = number

    previous = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
