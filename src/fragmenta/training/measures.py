"""Measurements that a run adds to its algorithm's metrics: speed, where time goes, memory."""

import collections
import os
import resource
from pathlib import Path
from typing import Any

import jax

from fragmenta.engines import IterationReport

WINDOW = 1.0
"""Seconds over which steps per second are averaged."""
MEMORY_EVERY = 1.0
"""Seconds between two measurements of memory, because one takes a while."""
MEGABYTE = 1e6


class Measures:
    """Turns an engine's reports into numbers for records; keeps the history that rates need."""

    def __init__(self) -> None:
        self._marks = collections.deque([(0.0, 0)])
        self._memory_measured_at = -MEMORY_EVERY

    def of(self, report: IterationReport, steps: int, seconds: float) -> dict[str, Any]:
        """Measurements after an iteration, by name; `steps` and `seconds` count from the start of training."""
        marks = self._marks
        marks.append((seconds, steps))
        while len(marks) > 2 and marks[1][0] <= seconds - WINDOW:
            marks.popleft()
        start_seconds, start_steps = marks[0]
        measurements: dict[str, Any] = {
            "steps_per_second": round((steps - start_steps) / max(seconds - start_seconds, 1e-9), 1),
            "steps_per_second_overall": round(steps / max(seconds, 1e-9), 1),
        }
        measurements |= {f"busy/{name}": round(share, 4) for name, share in report.busy.items()}
        measurements |= {f"fill/{name}": round(share, 4) for name, share in report.fill.items()}
        if report.lag is not None:
            measurements["lag"] = report.lag
        if seconds - self._memory_measured_at >= MEMORY_EVERY:
            self._memory_measured_at = seconds
            measurements |= memory()
        return measurements


def memory() -> dict[str, float]:
    """Megabytes: resident in this process and its descendants (shared pages count in each), and on devices."""
    usage = {"memory_mb": round(_resident() / MEGABYTE, 1)}
    used = [stats["bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
    return usage | ({"device_memory_mb": round(sum(used) / MEGABYTE, 1)} if used else {})


def _resident() -> int:
    try:
        return sum(map(_resident_of, _with_children(os.getpid())))
    except OSError:  # without /proc, fall back to the peak of this process
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        if process == os.getpid():
            raise
        return 0  # the process has ended meanwhile


def _with_children(process: int) -> list[int]:
    processes = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            processes += [descendant for child in task.read_text().split() for descendant in _with_children(int(child))]
        except OSError:
            continue  # a thread that has ended meanwhile
    return processes
