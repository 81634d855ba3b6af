"""A small process beside one that steps environments itself: says which environment ended or blocks it.

`python -m fragmenta_host.guard DESCRIPTOR MEMORY PROCESS TIMEOUT IS_PART FIRST NAME`
"""

import mmap
import os
import select
import subprocess
import sys
import time
import weakref

import numpy as np

from fragmenta_core.arrays import MOST_PROCESSES, nameless_file
from fragmenta_core.faults import OVERDUE

LOOK_SECONDS = 0.25
PART_WAITS = 5.0
"""Seconds by which it is left to the process of a part of the environments to say itself that one of them hangs."""
OVER = b"."
PROCESSES = "use --env-mode processes, where that is an error or a restart"


class Guard:
    """The guarded process's end. Its memory has the number of steps, and who is being stepped, as `Arrays.busy`."""

    def __init__(self, name: str, first: int, timeout: float, is_part: bool) -> None:
        memory = nameless_file(8 * (1 + MOST_PROCESSES))
        reader, line = os.pipe()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fragmenta_host.guard",
                *map(str, (reader, memory, os.getpid(), timeout, int(is_part), first)),
                name,
            ],
            pass_fds=(reader, memory),
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C must not end it first
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )
        os.close(reader)
        self.steps, self.busy = _views(memory)
        os.close(memory)
        self._finalizer = weakref.finalize(self, _end, process, line)

    def close(self) -> None:
        """End it silently: nothing went wrong."""
        self._finalizer()


class Busy:
    """Finds an environment that stays busy, by comparing what a guard sees at different times."""

    def __init__(self, steps: np.ndarray, busy: np.ndarray) -> None:
        self._steps, self._busy = steps, busy
        self._last: tuple[int, list[int]] | None = None
        self._since = time.monotonic()

    def longer_than(self, seconds: float) -> int | None:
        """The index of an environment that has been busy for that long, if there is one."""
        now = int(self._steps[0]), self._busy.tolist()
        if now != self._last:
            self._last, self._since = now, time.monotonic()
        if not self._busy.any() or time.monotonic() - self._since <= seconds:
            return None
        return int(self._busy[self._busy > 0][0]) - 1


def _end(process: subprocess.Popen, line: int) -> None:
    os.write(line, OVER)
    os.close(line)
    process.wait()


def _views(memory: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.frombuffer(mmap.mmap(memory, 8 * (1 + MOST_PROCESSES)), np.int64)
    return numbers[:1], numbers[1:]


def main() -> None:
    """Watch until the guarded process closes its environments or ends; end it if it has a part of them and blocks."""
    descriptor, memory, process, timeout, is_part, first, name = sys.argv[1:]
    line, (steps, busy) = int(descriptor), _views(int(memory))
    watched, reported = Busy(steps, busy), None
    limit = float(timeout) + PART_WAITS * int(is_part)
    # Its end is also seen where a process that an environment has forked holds the other end of the line.
    while os.getppid() == int(process):
        if select.select([line], [], [], LOOK_SECONDS)[0]:
            if os.read(line, 1) == OVER:
                return
            break
        index = watched.longer_than(limit)
        if index is not None and index != reported:
            late = f"{_named(index, int(first), name)} has not finished its step within {float(timeout):g} s and"
            if int(is_part):
                _report(f"{late} holds the interpreter, so its process ends: {PROCESSES}")
                os.kill(int(process), OVERDUE)
            else:
                _report(f"{late} blocks the run: end it with kill -9 {process}, or {PROCESSES}")
        reported = index
    if reported is None and busy.any():
        which = _named(int(busy[busy > 0][0]) - 1, int(first), name)
        _report(
            f"the process ended while it stepped {which}: with --env-mode processes the error says how, and "
            f"--env-restarts N restarts it"
        )


def _named(index: int, first: int, name: str) -> str:
    return f"environment {first + index} of {name}"


def _report(text: str) -> None:
    print(f"fragmenta: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
