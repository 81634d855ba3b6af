"""End a run early and cleanly: on Ctrl-C, on a closed terminal, or on the signal that precedes a preemption."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ITERATION_SECONDS = 5.0
"""How long an iteration may take to end before the user is told that it still runs."""
ENDING_SECONDS = 1.0
"""How long the run may take to end after a second signal."""
SHOW_CURSOR = "\x1b[?25h"
_handled: list[int] = []
"""The signals that end a run in this process."""


class Stop:
    """A request to end after the current iteration."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.is_compiling = True
        """Whether no iteration has begun; nothing else can interrupt compilation."""
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
    """Within this context, the first signal to end requests a stop, and the second ends the program within a second."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may set signal handlers
        return
    listener = _Listener(stop)
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = SIGNALS[:2] if under_nohup else SIGNALS
    previous = {number: signal.signal(number, listener.handle) for number in handled}
    descriptor = signal.set_wakeup_fd(listener.descriptor, warn_on_full_buffer=False)
    _handled.extend(handled)
    try:
        yield stop
    except BaseException:
        if listener.second is None:
            raise
        # JAX turns a KeyboardInterrupt in a callback into another error.
        interrupted = listener.second == signal.SIGINT
        raise KeyboardInterrupt if interrupted else StoppedError(listener.second, "interrupted") from None
    finally:
        _handled.clear()
        signal.set_wakeup_fd(descriptor)
        try:
            listener.close()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _leave_to_parent() -> None:
    """In a process that an environment forks, a signal ends that process and does not count as one for the run."""
    if _handled:
        signal.set_wakeup_fd(-1)
        for number in _handled:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_leave_to_parent)


class _Listener:
    """A thread that is notified of signals at once: Python's handlers wait until the main thread has compiled."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._first_handled = False
        self.second: int | None = None
        """The number of the second signal."""
        self._terminals = [number for number in (1, 2) if os.isatty(number)]
        self._numbers, sender = socket.socketpair()
        sender.setblocking(False)
        self._sender, self.descriptor = sender, sender.fileno()
        self._thread = threading.Thread(target=self._listen, name="fragmenta-signals", daemon=True)
        self._thread.start()

    def handle(self, number: int, _: FrameType | None) -> None:
        """The handler in the main thread."""
        if self._first_handled:
            self.second = number
            raise KeyboardInterrupt
        self._first_handled, self._stop.signal = True, number

    def close(self) -> None:
        """End the thread, even if a process that an environment has forked holds the connection, too."""
        self._sender.shutdown(socket.SHUT_RDWR)
        self._sender.close()
        self._thread.join()
        self._numbers.close()

    def _listen(self) -> None:
        if not (number := self._next(None)):
            return
        self._stop.signal = number
        if number == signal.SIGHUP:
            self._leave_terminal()
        second = None if self._stop.is_compiling else self._next(ITERATION_SECONDS)
        if second is None:
            when = "after compiling" if self._stop.is_compiling else "after this iteration"
            name = signal.Signals(number).name
            with contextlib.suppress(OSError):
                print(
                    f"fragmenta: {name}: the run saves and ends {when}; a second one ends it at once", file=sys.stderr
                )
            second = self._next(None)
        if second:
            self._end_anyway(second)

    def _next(self, timeout: float | None) -> int | None:
        """The number of the next signal; 0 if the run is over, None after the timeout."""
        self._numbers.settimeout(timeout)
        try:
            return int.from_bytes(self._numbers.recv(1))
        except TimeoutError:
            return None

    def _end_anyway(self, number: int) -> None:
        """End the program if the run has not ended by itself in time; its processes end with it."""
        end = time.monotonic() + ENDING_SECONDS
        while (left := end - time.monotonic()) > 0:
            if self._next(left) == 0:
                return
        with contextlib.suppress(OSError):
            for terminal in self._terminals[:1]:
                os.write(terminal, SHOW_CURSOR.encode())
            os.write(2, b"fragmenta: interrupted\n")
        os._exit(128 + number)

    def _leave_terminal(self) -> None:
        """Writing to a terminal that is gone is an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for terminal in self._terminals:
            os.dup2(nowhere, terminal)
        os.close(nowhere)
