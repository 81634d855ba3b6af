"""The parent's end of a worker process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from typing import IO, Any

from fragmenta_host.messages import receive, send

ENDING_SECONDS = 2.0
"""How long a worker may take to close its environments before it is killed."""


MOST_LINES = 10_000
"""How many different lines are remembered, so that none is shown twice."""


class GoneError(Exception):
    """The worker ended or does not answer; says how."""


class EnvProcess:
    """One worker. It never loads JAX, and ends with this object, with `close`, or with this process."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fragmenta_host.stepper", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is for the parent, which decides what becomes of its workers
                env=_environment(),
            )
        output = threading.Thread(target=_pass_on, args=(self.process.stdout,), name="fragmenta-output", daemon=True)
        output.start()
        self.lanes: dict[tuple[int, int], socket.socket] = {}
        self._finalizer = weakref.finalize(self, _end, self.process, self._control, self.lanes, output, 0.0)
        self._output = output

    def begin(self, order: dict[str, Any], *descriptors: int) -> None:
        """Give an order; `finish` has the answer."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `finish` will say what became of it
            send(self._control, order, descriptors)

    def finish(self, timeout: float) -> dict[str, Any]:
        """The answer to the order; GoneError if there is none in time."""
        self._control.settimeout(timeout)
        try:
            return receive(self._control)[0]
        except TimeoutError:
            raise self.gone(timeout) from None
        except (EOFError, ConnectionResetError):
            raise self.gone(None) from None

    def order(self, order: dict[str, Any], timeout: float, *descriptors: int) -> dict[str, Any]:
        """Give an order and wait for the answer."""
        self.begin(order, *descriptors)
        return self.finish(timeout)

    def open_lane(self, low: int, high: int, timeout: float) -> socket.socket:
        """A connection for steps of the environments from `low` to below `high`."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.order({"order": "lane", "low": low, "high": high}, timeout, theirs.fileno())
        ours.settimeout(timeout)
        self.lanes[low, high] = ours
        return ours

    def gone(self, timeout: float | None) -> GoneError:
        """How the worker ended; with a timeout it did not, so it is killed."""
        if timeout is not None:
            self.process.kill()
            self.process.wait()
            return GoneError(f"did not finish within {timeout:g} s, so its process was killed")
        try:
            code = self.process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return GoneError("closed its connection, so its process was killed")
        if code < 0:
            return GoneError(f"ended its process by {signal.Signals(-code).name}")
        return GoneError(f"ended its process with exit code {code}")

    def hang_up(self) -> None:
        """Let the worker end by itself; `close` waits for it."""
        for connection in (self._control, *self.lanes.values()):
            connection.close()

    def close(self, patience: float = ENDING_SECONDS) -> None:
        """End the worker, and wait until it has ended."""
        if self._finalizer.detach():
            _end(self.process, self._control, self.lanes, self._output, patience)


def _environment() -> dict[str, str]:
    # The same modules are found as here, those of the folder that the command was run in included.
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        found.setdefault(name, "1")  # there are as many processes as cores: threads would only get in their way
    return found


_printed: set[str] = set()


def _pass_on(stream: IO[bytes]) -> None:
    """Show what environments print, every line once: sixty-four of them say the same thing sixty-four times.

    It goes to standard error, because standard output is for what a command prints for scripts.
    """
    with stream:
        for line in stream:
            text = line.decode(errors="replace").rstrip()
            if text and text not in _printed:
                print(text, file=sys.stderr, flush=True)
                if len(_printed) < MOST_LINES:
                    _printed.add(text)


def _end(
    process: subprocess.Popen, control: socket.socket, lanes: dict, output: threading.Thread, patience: float
) -> None:
    for connection in (control, *lanes.values()):
        connection.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    output.join(ENDING_SECONDS)
