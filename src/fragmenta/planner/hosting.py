"""Measures what stepping host environments takes, as a run would step them."""

import statistics
import threading
import time
from collections.abc import Sequence

import numpy as np

from fragmenta.planner.costs import Cost
from fragmenta_core.faults import EnvironmentFaultError
from fragmenta_core.spaces import random_actions
from fragmenta_host.pool import Pool

MEASURE_SECONDS = 0.25
"""How long environments are stepped for a measurement."""
CALL_SECONDS = 6e-5
"""What a stage on the host takes besides the environments: arrays in and out, and statistics of episodes."""


def stepping_cost(pool: Pool, count: int, lanes: int) -> Cost | None:
    """The cost of one step of one of so many lanes, where `count` environments are divided among them and the others
    are idle; None if an environment fails, or cannot be copied."""
    if pool.spec.bound_here:
        return None
    twin = pool.twin()
    try:
        twin.open(lanes)
        twin.settle(count, lanes)
        twin.reset(np.arange(count))
        rows = count // lanes
        alone, busy = _seconds(twin, [0], rows)
        both = _seconds(twin, [0, rows], rows)[0] if lanes > 1 else alone
    except (EnvironmentFaultError, OSError):
        return None
    finally:
        twin.close()
    # Means, because threads take turns at the interpreter in long slices: few steps wait, and long.
    mean = _mean(alone)
    spread = statistics.stdev(alone) / mean if len(alone) > 2 else 0.0
    here = twin.mode in ("serial", "threads")
    # Two lanes at once are as fast as one if neither needs the interpreter, half as fast if both need it all the time.
    held = min(1.0, max(0.0, _mean(both) / mean - 1.0)) if lanes > 1 else 1.0
    cores = busy if here else float(twin.workers)
    return Cost(mean + CALL_SECONDS, max(0.1, cores), min(spread, 1.0), held if here else 0.0)


def _mean(seconds: Sequence[float]) -> float:
    """The mean without the largest, which are those of a machine that does something else."""
    return statistics.fmean(sorted(seconds)[: max(1, round(0.995 * len(seconds)))])


def _seconds(pool: Pool, lows: Sequence[int], rows: int) -> tuple[list[float], float]:
    """The seconds of every step of the first of these lanes, stepped at once; and the cores in use."""
    action = random_actions(pool.description.action, pool.description.rows(rows))
    times: dict[int, list[float]] = {low: [] for low in lows}
    failures: list[BaseException] = []
    end = time.perf_counter() + MEASURE_SECONDS

    def steps(low: int) -> None:
        try:
            while (began := time.perf_counter()) < end or len(times[low]) < 3:
                pool.step(low, action)
                times[low].append(time.perf_counter() - began)
        except BaseException as error:
            failures.append(error)

    started, busy = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=steps, args=(low,)) for low in lows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return times[lows[0]][1:], (time.process_time() - busy) / (time.perf_counter() - started)
