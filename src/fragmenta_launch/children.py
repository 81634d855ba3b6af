"""The subprocesses of the cluster engine on one machine. No JAX here: the parent process only waits."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from fragmenta_core.bounds import is_news
from fragmenta_core.faults import OVERDUE
from fragmenta_launch.child import write_order

_XLA_LOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d|WARNING: All log messages before|\[Gloo\] Rank")
_XLA_LOG_CONTINUED = re.compile(r"[ :=.*]|$|Additional GRPC|external/|RPC:")
MOST_LINES = 10_000
"""How many distinct lines are remembered, so that none is printed twice."""
TOOK_TOO_LONG = "was ended because an environment did not finish its step in time"
ENDING_SECONDS = 5.0
"""How long the last output of an ended process may take to arrive."""


class Children:
    """Subprocesses that run `serve` (module:function); they end with `close`, or with this process however it ends.

    `show` is called with the index of a process and a line of its output, `closing` before all are terminated.
    """

    def __init__(
        self, serve: str, show: Callable[[int, bytes], None], closing: Callable[[], None] = lambda: None
    ) -> None:
        self._serve, self._show, self._closing = serve, show, closing
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._outputs: list[threading.Thread] = []
        # The kernel kills a child when the *thread* that started it ends, so one permanent thread starts them all.
        self._starter = ThreadPoolExecutor(1, "fragmenta-launch")

    def start(self, index: int, job: bytes, coordinator: tuple[str, int], token: bytes) -> None:
        """Start process `index` and return at once; the same index again replaces a lost process."""
        self.kill(index)
        process = self._starter.submit(_spawn).result()
        self._processes[index] = process
        output = threading.Thread(
            target=self._serve_io, args=(process, index, job, coordinator, token), name="fragmenta-output", daemon=True
        )
        output.start()
        self._outputs = [*(thread for thread in self._outputs if thread.is_alive()), output]

    def ended(self, index: int) -> str | None:
        """How process `index` ended, as text; None while it starts or runs."""
        code = self._processes[index].poll()
        return None if code is None else exit_text(code)

    def wait(self, index: int) -> str:
        """Wait until process `index` has ended; returns how, as text."""
        return exit_text(self._processes[index].wait())

    def pid(self, index: int) -> int:
        """The process id of process `index`."""
        return self._processes[index].pid

    def kill(self, index: int) -> None:
        """Kill process `index` now, even if it is stopped."""
        if index in self._processes:
            _kill(self._processes[index])
            self._processes[index].wait()

    def close(self) -> None:
        """Kill all processes and wait until they and their output have ended."""
        self._closing()
        for process in self._processes.values():
            _kill(process)
        for process in self._processes.values():
            process.wait()
        for output in self._outputs:
            output.join(ENDING_SECONDS)
        self._starter.shutdown()

    def _serve_io(
        self, process: subprocess.Popen[bytes], index: int, job: bytes, coordinator: tuple[str, int], token: bytes
    ) -> None:
        """Send a process its order, then forward its output until it ends."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # `ended` reports what happened
            write_order(process.stdin, self._serve, coordinator, token, index, job)
        with process.stdout as lines:
            for line in lines:
                self._show(index, line)


class OutputPrinter:
    """Forwards the output of processes: all of it to a file per process, if there is a folder; to standard error every
    distinct line once, without XLA's log messages."""

    def __init__(self, logs: Path | None, names: Sequence[str] = ()) -> None:
        self._logs, self._names = logs, names
        self._printed: set[str] = set()
        self._hidden: set[int] = set()
        self._quiet = False

    def __call__(self, index: int, line: bytes) -> None:
        """Forward a line of process `index`."""
        name = self._names[index] if index < len(self._names) else f"process-{index}"
        if self._logs:
            with open(self._logs / f"{name}.log", "ab") as log:
                log.write(line)
        text = line.decode(errors="replace").rstrip()
        if _XLA_LOG.match(text) or (index in self._hidden and _XLA_LOG_CONTINUED.match(text)):
            self._hidden.add(index)
            return
        self._hidden.discard(index)
        if text and not self._quiet and text not in self._printed and is_news(text):
            if len(self._printed) < MOST_LINES:
                self._printed.add(text)
            print(f"{name}: {text}", file=sys.stderr, flush=True)

    def hush(self) -> None:
        """Write to files only from now on: terminated processes complain about each other."""
        self._quiet = True


def exit_text(code: int) -> str:
    """How a process with this exit code ended, as text."""
    if code == -OVERDUE:
        return TOOK_TOO_LONG
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that its environments started: they would keep its output open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _spawn() -> subprocess.Popen[bytes]:
    # The same module path as here, including the current working directory.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # JAX's libraries log warnings when processes connect or are lost, which the engine reports itself. "1" is JAX's own
    # default, set if the user configured nothing.
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3" if level == "1" else level}
    return subprocess.Popen(
        [sys.executable, "-m", "fragmenta_launch.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # Ctrl-C goes to the parent only, which decides what to do with its processes
        env={**os.environ, **quiet, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
    )
