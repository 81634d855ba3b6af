"""Shared by the sides of `environments.py` and `cluster.py`: each runs in a separate process and prints a rate."""

import ctypes
import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

NUM_ENVS = 64
HORIZON = 128
MINIBATCHES = 4
BATCH = NUM_ENVS * HORIZON
BECOME_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl


def steady_rate(marks: Sequence[tuple[float, int]]) -> float:
    """Steps per second from marks of (seconds, steps so far), one per iteration, without the first tenth of them."""
    first = max(1, len(marks) // 10)
    if len(marks) < first + 2:
        raise SystemExit(f"{len(marks)} iterations are too few for a rate: give it more --seconds")
    (begin, before), (end, after) = marks[first], marks[-1]
    return (after - before) / (end - begin)


def take_turns(sides: Mapping[tuple[str, str], Callable[[], float]], rounds: int) -> dict[tuple[str, str], list[float]]:
    """The rates of all sides, by library and environment, in every round.

    The order is reversed in every other round, so that a machine that slows down favours no side.
    """
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in sides}
    for i in range(rounds):
        for key in sides if i % 2 == 0 else reversed(sides):
            rates[key].append(sides[key]())
            print(f"round {i + 1}: {' '.join(key)}: {rates[key][-1]:,.0f}", flush=True)
    return rates


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios per round: the sides of a round run within minutes, but rounds may be far apart."""
    return statistics.median(our_rate / their_rate for our_rate, their_rate in zip(ours, theirs, strict=True))


def answer(rate: float, **details: object) -> None:
    """Print the result of a side, as its last line."""
    print(json.dumps({"rate": rate, **details}), flush=True)


def ask(command: Sequence[str | Path], deadline: float, **settings: str) -> dict:
    """Run a side to its end and return its answer; end the processes and remove the files that it leaves behind."""
    with tempfile.TemporaryDirectory() as folder:
        # Output to a file instead of a pipe, which a daemon that inherited it would keep open.
        output = Path(folder, "said")
        with output.open("w") as out:
            environment = os.environ | settings | {"TMPDIR": folder}
            child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
            try:
                child.wait(deadline)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
                end_orphans()
        lines = output.read_text().splitlines()
    if child.returncode:
        raise SystemExit("\n".join([f"{' '.join(map(str, command))} failed:", *lines[-20:]]))
    return json.loads(next(line for line in reversed(lines) if line.startswith('{"rate"')))


def adopt_orphans() -> None:
    """From now on, a process whose parent ended becomes a child of this process, so that none is lost.

    Daemons leave the process group of their parent, so the group is not enough to find them.
    """
    ctypes.CDLL(None, use_errno=True).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """End every child of this process, including children that are adopted while doing so."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
