"""What a run measures of itself, next to what its algorithm reports: speed, where time goes, memory."""

import collections
import os
import resource
from pathlib import Path
from typing import Any

import jax

from fragmenta.engines import Report

WINDOW = 1.0
"""Steps per second are those of about so many last seconds."""
MEMORY_EVERY = 1.0
"""Memory is looked at once in so many seconds at most, because that takes a while."""
MEGABYTE = 1e6


class Measures:
    """Turns an engine's reports into numbers for records; knows of earlier ones."""

    def __init__(self) -> None:
        self._marks = collections.deque([(0.0, 0)])
        self._looked_at_memory = -MEMORY_EVERY

    def of(self, report: Report, steps: int, seconds: float) -> dict[str, Any]:
        """Measures after an iteration, by name; `seconds` and `steps` are since the start of training."""
        marks = self._marks
        marks.append((seconds, steps))
        while len(marks) > 2 and marks[1][0] <= seconds - WINDOW:
            marks.popleft()
        since, before = marks[0]
        found: dict[str, Any] = {
            "steps_per_second": round((steps - before) / max(seconds - since, 1e-9), 1),
            "steps_per_second_overall": round(steps / max(seconds, 1e-9), 1),
        }
        found |= {f"busy/{name}": round(share, 4) for name, share in report.busy.items()}
        found |= {f"fill/{name}": round(share, 4) for name, share in report.fill.items()}
        if report.lag is not None:
            found["lag"] = report.lag
        if seconds - self._looked_at_memory >= MEMORY_EVERY:
            self._looked_at_memory = seconds
            found |= memory()
        return found


def memory() -> dict[str, float]:
    """Megabytes: resident, of this process and all below it (pages that they share count in each); and on devices."""
    found = {"memory_mb": round(_resident() / MEGABYTE, 1)}
    used = [stats["bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
    return found | ({"device_memory_mb": round(sum(used) / MEGABYTE, 1)} if used else {})


def _resident() -> int:
    try:
        return sum(map(_resident_of, _with_children(os.getpid())))
    except OSError:  # a system without /proc: at least the most that this process ever had
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        if process == os.getpid():
            raise
        return 0  # it has ended meanwhile


def _with_children(process: int) -> list[int]:
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [each for child in task.read_text().split() for each in _with_children(int(child))]
        except OSError:
            continue  # a thread that has ended meanwhile
    return found
