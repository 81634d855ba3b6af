"""Measures what stepping host environments takes, as a run would step them."""

import statistics
import threading
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.planner.costs import Cost
from fragmenta_core.faults import EnvironmentFaultError
from fragmenta_core.spaces import random_actions
from fragmenta_host.pool import Pool

WEIGHTS = np.full((64, 64), 0.01, np.float32)
"""Of the small network that acts between two steps."""
MEASURE_SECONDS = 0.25
"""How long environments are stepped for a measurement."""
ROW_SECONDS = 4e-7
"""For every environment, besides what a stage on the host takes in any case."""
CALL_SECONDS = 4.5e-5
"""What a stage on the host takes besides the environments: arrays in and out, and statistics of episodes."""


def stepping_cost(pool: Pool, count: int, lanes: int, is_apart: bool = False) -> Cost | None:
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
        alone, busy = _seconds(twin, [0], rows, acts=not is_apart)
        held = 1.0
        if lanes > 1 and twin.mode in ("serial", "threads"):
            # Two lanes at once are as fast as one if neither needs the interpreter, else they take turns.
            one, two = (_seconds(twin, lows, rows, acts=False)[0] for lows in ([0], [0, rows]))
            held = min(1.0, max(0.0, _mean(two) / _mean(one) - 1.0))
    except (EnvironmentFaultError, OSError):
        return None
    finally:
        twin.close()
    # Means, because threads take turns at the interpreter in long slices: few steps wait, and long.
    mean = _mean(alone)
    spread = statistics.stdev(alone) / mean if len(alone) > 2 else 0.0
    is_here = twin.mode in ("serial", "threads")
    cores = busy if is_here else float(twin.workers)
    call = CALL_SECONDS + ROW_SECONDS * count / lanes
    return Cost(mean + call, max(0.1, cores), min(spread, 1.0), held if is_here else 0.0)


def _mean(seconds: Sequence[float]) -> float:
    """The mean without the largest, which are those of a machine that does something else."""
    return statistics.fmean(sorted(seconds)[: max(1, round(0.995 * len(seconds)))])


def _seconds(pool: Pool, lows: Sequence[int], rows: int, acts: bool) -> tuple[list[float], float]:
    """The seconds of every step of the first of these lanes, stepped at once, maybe with acting in between; and the
    cores in use."""
    acting = jax.jit(lambda rows: jnp.tanh(jnp.tanh(rows @ WEIGHTS) @ WEIGHTS).sum())
    observed = jnp.ones((rows, len(WEIGHTS)))
    acting(observed).block_until_ready()
    action = random_actions(pool.description.action, pool.description.rows(rows))
    times: dict[int, list[float]] = {low: [] for low in lows}
    failures: list[BaseException] = []
    end = time.perf_counter() + MEASURE_SECONDS

    def steps(low: int) -> None:
        try:
            while time.perf_counter() < end or len(times[low]) < 3:
                # As in a run: what computes actions keeps threads awake, which takes cores from the environments.
                if acts:
                    acting(observed).block_until_ready()
                began = time.perf_counter()
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
