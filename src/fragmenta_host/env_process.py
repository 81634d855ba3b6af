"""The parent's end of an environment process."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from typing import IO, Any

from fragmenta_core.bounds import is_news
from fragmenta_host.messages import receive, send

ENDING_SECONDS = 2.0
"""How long a process may take to close its environments before it is killed."""


MOST_LINES = 10_000
"""Maximum number of distinct output lines remembered, so that none is shown twice."""


class GoneError(Exception):
    """The process ended or does not answer; the message says how."""


class EnvProcess:
    """One environment process. It never loads JAX, and ends with this object, with `close`, or with its parent."""

    def __init__(self) -> None:
        self._control, child_end = socket.socketpair()
        with child_end:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fragmenta_host.stepper", str(child_end.fileno())],
                pass_fds=(child_end.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C goes to the parent only, which ends its processes itself
                env=_environment(),
            )
        output = threading.Thread(target=_pass_on, args=(self.process.stdout,), name="fragmenta-output", daemon=True)
        output.start()
        self.lanes: dict[tuple[int, int], socket.socket] = {}
        self._finalizer = weakref.finalize(self, _end, self.process, self._control, self.lanes, output, 0.0)
        self._output = output

    def begin(self, order: dict[str, Any], *descriptors: int) -> None:
        """Send an order; `finish` returns the answer."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `finish` will report it
            send(self._control, order, descriptors)

    def finish(self, timeout: float) -> dict[str, Any]:
        """The answer to the order; GoneError if it does not arrive in time."""
        self._control.settimeout(timeout)
        try:
            return receive(self._control)[0]
        except TimeoutError:
            raise self.gone(timeout) from None
        except (EOFError, ConnectionResetError):
            raise self.gone(None) from None

    def order(self, order: dict[str, Any], timeout: float, *descriptors: int) -> dict[str, Any]:
        """Send an order and wait for the answer."""
        self.begin(order, *descriptors)
        return self.finish(timeout)

    def open_lane(self, low: int, high: int, timeout: float) -> socket.socket:
        """A connection for steps of the environments with low <= index < high."""
        parent_end, child_end = socket.socketpair()
        with child_end:
            self.order({"order": "lane", "low": low, "high": high}, timeout, child_end.fileno())
        parent_end.settimeout(timeout)
        self.lanes[low, high] = parent_end
        return parent_end

    def gone(self, timeout: float | None) -> GoneError:
        """How the process ended; given a timeout, it did not answer in time and is killed."""
        if timeout is not None:
            _kill(self.process)
            return GoneError(f"did not finish within {timeout:g} s, so its process was killed")
        try:
            code = self.process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(self.process)
            return GoneError("closed its connection, so its process was killed")
        if code < 0:
            return GoneError(f"ended its process by {signal.Signals(-code).name}")
        return GoneError(f"ended its process with exit code {code}")

    def hang_up(self) -> None:
        """Disconnect, so that the process ends by itself; `close` waits for it."""
        for connection in (self._control, *self.lanes.values()):
            connection.close()

    def close(self, patience: float = ENDING_SECONDS) -> None:
        """End the process, and wait until it has ended."""
        if self._finalizer.detach():
            _end(self.process, self._control, self.lanes, self._output, patience)


def _environment() -> dict[str, str]:
    # The child finds the same modules as this process, including those in the current directory.
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    variables["PYTHONUNBUFFERED"] = "1"  # what an environment prints is seen at once
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        variables.setdefault(name, "1")  # there is one process per core: threads would only contend
    return variables


_printed: set[str] = set()


def _pass_on(stream: IO[bytes]) -> None:
    """Forward the output of environments, every distinct line once: 64 environments print the same line 64 times.

    It goes to standard error, because standard output is reserved for output that scripts read.
    """
    with stream:
        for line in stream:
            text = line.decode(errors="replace").rstrip()
            if text and text not in _printed and is_news(text):
                print(text, file=sys.stderr, flush=True)
                if len(_printed) < MOST_LINES:
                    _printed.add(text)


def _end(
    process: subprocess.Popen, control: socket.socket, lanes: dict, output: threading.Thread, patience: float
) -> None:
    for connection in (control, *lanes.values()):
        connection.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    _kill(process)
    output.join(ENDING_SECONDS)


def _kill(process: subprocess.Popen) -> None:
    """Kill a process and those that its environments started: they would keep its output open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
