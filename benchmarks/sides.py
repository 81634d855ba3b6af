"""What the sides of `environments.py` and `cluster.py` share: each has a process of its own and answers with a rate."""

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
    """Steps per second from marks of (seconds, steps so far), one per iteration, the first tenth of them left out."""
    first = max(1, len(marks) // 10)
    if len(marks) < first + 2:
        raise SystemExit(f"{len(marks)} iterations are too few for a rate: give it more --seconds")
    (begin, before), (end, after) = marks[first], marks[-1]
    return (after - before) / (end - begin)


def take_turns(sides: Mapping[tuple[str, str], Callable[[], float]], rounds: int) -> dict[tuple[str, str], list[float]]:
    """The rates of all sides, by who and what, in every round.

    Who is first in one round is last in the next: in as many rounds of each kind, a slower machine favours nobody.
    """
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in sides}
    for i in range(rounds):
        for key in sides if i % 2 == 0 else reversed(sides):
            rates[key].append(sides[key]())
            print(f"round {i + 1}: {' '.join(key)}: {rates[key][-1]:,.0f}", flush=True)
    return rates


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: two sides of one round ran within minutes, the rounds may be far apart."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def answer(rate: float, **details: object) -> None:
    """A side's last words."""
    print(json.dumps({"rate": rate, **details}), flush=True)


def ask(command: Sequence[str | Path], deadline: float, **settings: str) -> dict:
    """Run a side to its end, and take its answer; whatever it left behind is ended by its process id, or removed."""
    with tempfile.TemporaryDirectory() as folder:
        # Into a file, not through a pipe: that would stay open for as long as a daemon that inherited it.
        said = Path(folder, "said")
        with said.open("w") as out:
            environment = os.environ | settings | {"TMPDIR": folder}
            child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
            try:
                child.wait(deadline)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
                end_orphans()
        lines = said.read_text().splitlines()
    if child.returncode:
        raise SystemExit("\n".join([f"{' '.join(map(str, command))} failed:", *lines[-20:]]))
    return json.loads(next(line for line in reversed(lines) if line.startswith('{"rate"')))


def adopt_orphans() -> None:
    """From now on, a process whose parent ended becomes a child of this one, so that none is lost sight of.

    Daemons leave their parent's process group, so the group alone would not find them.
    """
    ctypes.CDLL(None, use_errno=True).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """End every child of this process; ending one may hand over its own children."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
