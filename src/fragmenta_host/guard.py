"""A small process beside one that steps environments itself: says which environment ended or blocks it.

`python -m fragmenta_host.guard DESCRIPTOR MEMORY PROCESS TIMEOUT FIRST NAME`
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

LOOK_SECONDS = 0.25
OVER = b"."


class Guard:
    """The guarded process's end. Its memory has the number of steps, and who is being stepped, as `Arrays.busy`."""

    def __init__(self, name: str, first: int, timeout: float) -> None:
        memory = nameless_file(8 * (1 + MOST_PROCESSES))
        seen, line = os.pipe()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "fragmenta_host.guard",
                *map(str, (seen, memory, os.getpid(), timeout, first)),
                name,
            ],
            pass_fds=(seen, memory),
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C must not end it first
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )
        os.close(seen)
        self.steps, self.busy = _views(memory)
        os.close(memory)
        self._finalizer = weakref.finalize(self, _end, process, line)

    def close(self) -> None:
        """End it without a word: all is well."""
        self._finalizer()


def _end(process: subprocess.Popen, line: int) -> None:
    os.write(line, OVER)
    os.close(line)
    process.wait()


def _views(memory: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.frombuffer(mmap.mmap(memory, 8 * (1 + MOST_PROCESSES)), np.int64)
    return numbers[:1], numbers[1:]


def main() -> None:
    """Watch until the guarded process closes its environments or ends."""
    descriptor, memory, process, timeout, first, name = sys.argv[1:]
    line, (steps, busy) = int(descriptor), _views(int(memory))
    last, since, told = None, time.monotonic(), False
    while not select.select([line], [], [], LOOK_SECONDS)[0]:
        now = int(steps[0]), busy.tolist()
        if now != last:
            last, since, told = now, time.monotonic(), False
        elif busy.any() and not told and time.monotonic() - since > float(timeout):
            told = True
            which = _named(busy, int(first), name)
            _say(
                f"{which} has not finished its step within {float(timeout):g} s and blocks the run: end it with kill "
                f"-9 {process}, or use --env-mode processes, where that is an error or a restart"
            )
    if os.read(line, 1) != OVER and busy.any():
        which = _named(busy, int(first), name)
        _say(
            f"the process ended while it stepped {which}: with --env-mode processes the error says how, and "
            f"--env-restarts N restarts it"
        )


def _named(busy: np.ndarray, first: int, name: str) -> str:
    return f"environment {first + int(busy[busy > 0][0]) - 1} of {name}"


def _say(text: str) -> None:
    print(f"fragmenta: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
