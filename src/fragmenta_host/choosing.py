"""How host environments are stepped where the user leaves it open: serially or in processes, whichever is faster."""

import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from fragmenta_core.arrays import MOST_PROCESSES
from fragmenta_host.catalogue import Spec
from fragmenta_host.env_process import GoneError
from fragmenta_host.env_processes import EnvProcesses, Lane
from fragmenta_host.examine import EXAMINE_SECONDS
from fragmenta_host.options import PoolOptions

HAND_OVER_SECONDS = 60e-6
"""Overhead of a lane's step for each process that it uses, at least."""
CLEAR_SECONDS = 0.05
"""From this duration of a step of all environments on, no overhead outweighs the second process."""
ADVANTAGE = 0.75
"""Processes must take less than this share of the serial time: acting and learning will contend for their cores. On two
cores, 32 environments in two processes took 0.18 ms, and 0.25 ms with a small network acting in between; serially they
took 0.19 and 0.21 ms."""
ROUNDS, FEWEST_ROUNDS, BLOCK_SECONDS, BUDGET_SECONDS = 7, 3, 0.03, 0.8
"""Both ways take turns in blocks of steps, until there are enough rounds, or fewer that all agree."""


class StepTimes(NamedTuple):
    """Seconds that a step of all environments takes."""

    serial: float
    processes: float
    workers: int
    """The number of processes."""


class SteppingMode(NamedTuple):
    """How environments are stepped, and the measurement that decided it, if one was needed."""

    mode: str
    workers: int
    times: StepTimes | None = None


def provisional_mode(
    spec: Spec, options: PoolOptions, most: int, step_seconds: float, count: int, parts: int
) -> tuple[SteppingMode, bool]:
    """How `count` environments are stepped in `parts` lanes with `most` cores as far as options and the duration of one
    step tell, and whether that is certain; if not, a measurement against serial stepping decides."""
    most = max(1, min(options.workers or most, count, MOST_PROCESSES))
    if spec.is_vector:
        return SteppingMode("vector", most), True
    if spec.bound_here:
        return SteppingMode("serial", 1), True
    if options.mode != "auto":
        return SteppingMode(options.mode, 1 if options.mode == "serial" else most), True
    all_seconds = count * step_seconds
    workers = most if options.workers else processes_for(all_seconds / parts, most)
    if options.restarts:  # only in its own process can an environment crash and be restarted
        return SteppingMode("processes", workers), True
    if workers == 1:
        return SteppingMode("serial", 1), True
    return SteppingMode("processes", workers), all_seconds > CLEAR_SECONDS


def processes_for(lane_seconds: float, most: int) -> int:
    """The best number of processes for a lane whose environments take that long serially; 1 if a second saves nothing.

    A lane's step takes lane_seconds / n plus an overhead per process; the root minimises the sum.
    """
    return max(1, min(most, round(math.sqrt(lane_seconds / HAND_OVER_SECONDS))))


def measure_stepping(
    processes: EnvProcesses, actions: np.ndarray, lanes: Sequence[Lane], guess: float
) -> StepTimes | None:
    """Step the environments, which were just reset, both ways: all processes at once, as a run would, and each alone
    while the others are idle, whose sum is the serial time. None if a step fails; `guess` is about the serial time.
    """
    block = max(1, round(BLOCK_SECONDS / guess))
    processes.arrays.action[:] = actions
    serial: list[float] = []
    parallel: list[float] = []
    end = time.perf_counter() + BUDGET_SECONDS
    with ThreadPoolExecutor(len(lanes)) as threads:
        try:
            _step(processes, lanes, threads, 1)  # connects the lanes
            while not serial or (len(serial) < ROUNDS and time.perf_counter() < end):
                serial.append(processes.seconds_in_turn(block) / block)
                parallel.append(_step(processes, lanes, threads, block) / block)
                agree = max(parallel) < ADVANTAGE * min(serial) or min(parallel) > max(serial)
                if len(serial) >= FEWEST_ROUNDS and agree:
                    break
        except GoneError:
            return None
    return StepTimes(statistics.median(serial), statistics.median(parallel), processes.count)


def faster_mode(times: StepTimes | None, workers: int) -> SteppingMode:
    """The faster way. Environments that fail are best kept in processes, where the error says how."""
    if times is None or times.processes < ADVANTAGE * times.serial:
        return SteppingMode("processes", workers, times)
    return SteppingMode("serial", 1, times)


def mode_text(spec: Spec, choice: SteppingMode, is_settled: bool, step_seconds: float) -> str:
    """How environments are stepped and why, in words."""
    if choice.mode == "vector":
        return f"by {spec.package} in {choice.workers} threads"
    serially, processes = "one after the other in this process", f"in {choice.workers} {choice.mode}"
    if not is_settled:
        return f"{serially} or {processes}, whichever proves faster"
    how = serially if choice.mode == "serial" else processes
    if spec.bound_here:
        return f"{how}, because it cannot be copied to another ({spec.bound_here.reason})"
    if choice.times:
        serial, parallel = (f"{seconds * 1e3:,.2f} ms" for seconds in choice.times[:2])
        return (
            f"{how} (a step of all takes {serial} one after the other, {parallel} in {choice.times.workers} processes)"
        )
    if step_seconds >= EXAMINE_SECONDS:
        return f"{how} (a test step failed)"
    return f"{how} (one step takes {step_seconds * 1e6:,.0f} us)" if step_seconds else how


def _step(processes: EnvProcesses, lanes: Sequence[Lane], threads: ThreadPoolExecutor, steps: int) -> float:
    """Seconds that the lanes, all at once, take for this many steps."""

    def lane_steps(lane: Lane) -> None:
        for _ in range(steps):
            faults, _ = processes.step(*lane)
            if faults:
                raise GoneError(faults[0].what)

    started = time.perf_counter()
    list(threads.map(lane_steps, lanes))
    return time.perf_counter() - started
