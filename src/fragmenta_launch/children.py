"""Processes that the cluster engine starts on a machine. No JAX here: whoever holds them only waits."""

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

from fragmenta_launch.child import write_order

_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d|WARNING: All log messages before|\[Gloo\] Rank")
_GOES_ON = re.compile(r"[ :=.*]|$|Additional GRPC|external/|RPC:")
MOST_LINES = 10_000
"""How many different lines are remembered, so that none is shown twice."""
ENDING_SECONDS = 5.0
"""How long the last output of a process that has ended may take to arrive."""


class Children:
    """Subprocesses that run `serve` (module:function); they end with `close`, or with this process whatever ends it.

    `show` is called with the index of a process and a line that it printed, `closing` before all are ended.
    """

    def __init__(
        self, serve: str, show: Callable[[int, bytes], None], closing: Callable[[], None] = lambda: None
    ) -> None:
        self._serve, self._show, self._closing = serve, show, closing
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._outputs: list[threading.Thread] = []
        # The kernel ends a child with the *thread* that started it, so all are started by one that lasts.
        self._starter = ThreadPoolExecutor(1, "fragmenta-launch")

    def start(self, index: int, job: bytes, coordinator: tuple[str, int], token: bytes) -> None:
        """Start process `index` and return at once; the same index again replaces one that was lost."""
        self.kill(index)
        process = self._starter.submit(_spawn).result()
        self._processes[index] = process
        output = threading.Thread(
            target=self._attend, args=(process, index, job, coordinator, token), name="fragmenta-output", daemon=True
        )
        output.start()
        self._outputs = [*(thread for thread in self._outputs if thread.is_alive()), output]

    def ended(self, index: int) -> str | None:
        """In words how process `index` ended, or None while it starts or runs."""
        code = self._processes[index].poll()
        return None if code is None else in_words(code)

    def wait(self, index: int) -> str:
        """Wait until process `index` has ended, and say how."""
        return in_words(self._processes[index].wait())

    def pid(self, index: int) -> int:
        """The process id of process `index`."""
        return self._processes[index].pid

    def kill(self, index: int) -> None:
        """End process `index` now, even if it is stopped."""
        if index in self._processes:
            self._processes[index].kill()
            self._processes[index].wait()

    def close(self) -> None:
        """End all processes and wait until they and their output have ended."""
        self._closing()
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        for output in self._outputs:
            output.join(ENDING_SECONDS)
        self._starter.shutdown()

    def _attend(
        self, process: subprocess.Popen[bytes], index: int, job: bytes, coordinator: tuple[str, int], token: bytes
    ) -> None:
        """Give a process its order, then pass on what it prints until it ends."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # `ended` says what became of it
            write_order(process.stdin, self._serve, coordinator, token, index, job)
        with process.stdout as lines:
            for line in lines:
                self._show(index, line)


class Shown:
    """Passes on what processes print: where there is a folder, all of it to a file per process there; to standard error
    every line once, without what XLA's own logging says, which a file has."""

    def __init__(self, logs: Path | None, names: Sequence[str] = ()) -> None:
        self._logs, self._names = logs, names
        self._printed: set[str] = set()
        self._hidden: set[int] = set()
        self._quiet = False

    def __call__(self, index: int, line: bytes) -> None:
        """Pass on a line of process `index`."""
        name = self._names[index] if index < len(self._names) else f"process-{index}"
        if self._logs:
            with open(self._logs / f"{name}.log", "ab") as log:
                log.write(line)
        text = line.decode(errors="replace").rstrip()
        if _LOGGED.match(text) or (index in self._hidden and _GOES_ON.match(text)):
            self._hidden.add(index)
            return
        self._hidden.discard(index)
        if text and not self._quiet and text not in self._printed:
            if len(self._printed) < MOST_LINES:
                self._printed.add(text)
            print(f"{name}: {text}", file=sys.stderr, flush=True)

    def hush(self) -> None:
        """From now on to files only: processes that are ended complain that others were."""
        self._quiet = True


def in_words(code: int) -> str:
    """How a process with this exit code ended."""
    return f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _spawn() -> subprocess.Popen[bytes]:
    # The same modules are found as here, those of the folder that the command was run in included.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # JAX's own libraries warn of each other when processes meet and when one is lost, which the engine says itself.
    # "1" is what JAX sets where the user said nothing.
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3" if level == "1" else level}
    return subprocess.Popen(
        [sys.executable, "-m", "fragmenta_launch.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # Ctrl-C is for the parent, which decides what becomes of its processes
        env={**os.environ, **quiet, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
    )
