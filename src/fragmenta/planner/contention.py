"""Measures how much of the cores of this machine other processes leave."""

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

from fragmenta.engines.limits import usable_cores
from fragmenta_host.options import cores

PROBE_SECONDS = 0.1
"""Long enough for a share of a ninth: beside eight others, the scheduler comes round about every 30 ms."""
FULL = 0.9
"""A core of which this share was left is a free one: something always runs for a moment."""
ATTEMPTS = 3
"""So often it is measured until all cores are free, and the most counts: what only takes a moment is no load."""
BLOCK = bytes(2**17)
"""Hashing it takes about a tenth of a millisecond, in which a thread does not hold the interpreter."""


def available_cores() -> tuple[float, ...]:
    """For each core that this process may use, the share of it that it gets now, if it asks for all of them at once."""
    count, numbers = usable_cores(), _numbers()
    # Under a limit of time it may run anywhere, and pinning would say that it can have no more than a part of each.
    pinned: list[int | None] = [*numbers] if len(numbers) == count else [None] * count
    most = [0.0] * count
    for _ in range(ATTEMPTS):
        with ThreadPoolExecutor(count, thread_name_prefix="fragmenta-probe") as pool:
            most = [max(pair) for pair in zip(most, pool.map(share_of, pinned), strict=True)]
        if min(most) >= FULL:
            break
    return tuple(1.0 if share >= FULL else share for share in most)


def share_of(core: int | None) -> float:
    """The share of the time in which this thread computes, on this core from now on if it is given."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})  # of this thread alone, which ends after this
    began, busy = time.perf_counter(), time.thread_time()
    while (seconds := time.perf_counter() - began) < PROBE_SECONDS:
        hashlib.sha256(BLOCK)
    return min(1.0, (time.thread_time() - busy) / seconds)


def _numbers() -> list[int]:
    """The cores in the order in which workers are pinned to them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
