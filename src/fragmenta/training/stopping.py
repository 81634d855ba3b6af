"""End a run early and well: by Ctrl-C, or by the signal that comes before a machine is taken away."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Stop:
    """A request to end after the iteration that is under way."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


class StoppedError(Exception):
    """The run was ended early, after its state was saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class NotFiniteError(Exception):
    """Parameters or losses are no longer numbers; says who made them and how to go on."""


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Within, the first SIGINT or SIGTERM asks to stop, and the second ends the program at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may say what signals do
        return

    def ask(number: int, _: FrameType | None) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.signal = number

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
