"""Load on the core of a run, in its middle: the line about it, the change of the plan, and the parameters at the end.

The run has one core of several. What it reaches there without load is the prediction; then other processes compute on
that core. A stand-in for the planner moves the run to a process on the other cores. The parameters at the end are
compared with those of a run that nothing disturbed.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np

import fragmenta
from fragmenta import Cluster, RunOptions, make
from fragmenta.progress.watching import Progress
from fragmenta.training.callbacks import Callbacks
from fragmenta.training.planning import PlannedRun, Replan, Request, plan_run
from fragmenta.training.train import _start

CORES = sorted(os.sched_getaffinity(0))
BUSY = f"import os\nos.sched_setaffinity(0, {CORES[:1]})\nwhile True: pass"


class Disturbance:
    """A watcher that starts the load after so many iterations, and prints the lines about the run."""

    def __init__(self, at: int, processes: int) -> None:
        self._at, self._count, self._began = at, processes, time.monotonic()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.lines: list[str] = []

    def planned(self, *_: Any) -> None: ...
    def placed(self, *_: Any) -> None: ...
    def compiled(self, seconds: float) -> None: ...

    def progressed(self, progress: Progress) -> None:
        if progress.iteration == self._at and self._count:
            self.print(f"{self._count} other processes begin to compute on core {CORES[0]}")
            command = [sys.executable, "-c", BUSY]
            self._processes = [subprocess.Popen(command) for _ in range(self._count)]

    def remarked(self, text: str) -> None:
        self.lines.append(text)
        self.print(text)

    def print(self, text: str) -> None:
        print(f"  {time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def to_other_cores(run: PlannedRun, _: float) -> PlannedRun:
    os.sched_setaffinity(0, CORES[1:])  # threads and processes that start from now on are there
    cluster = Cluster(("cpu:0",), apart=True)
    return plan_run(dataclasses.replace(run.request, policy="fused", engine="processes", cluster=cluster))


def trained(
    algorithm: fragmenta.PPO,
    predicted: float | None = None,
    load_at: int = 0,
    load: int = 0,
    replan: Replan | None = None,
) -> tuple[fragmenta.Result, list[str]]:
    cluster, options = Cluster(("cpu:0",)), RunOptions(sinks=())
    request = Request(algorithm, make("CartPole-v1"), "CartPole-v1", {}, "fused", "local", cluster, 0, 1, options)
    run = dataclasses.replace(plan_run(request), predicted=predicted)
    watcher = Disturbance(load_at, load)
    try:
        return _start(run, None, None, Callbacks(), watcher, replan), watcher.lines
    finally:
        watcher.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=12.0, help="how long the run takes without load")
    parser.add_argument("--load", type=int, default=3, help="processes that compute on the core of the run")
    options = parser.parse_args()
    if len(CORES) < 2:
        parser.error("this needs two cores")
    os.sched_setaffinity(0, CORES[:1])  # before JAX starts its threads
    algorithm = fragmenta.PPO(num_envs=options.num_envs)
    each = algorithm.steps_per_iteration
    first, _ = trained(dataclasses.replace(algorithm, total_steps=100 * each))
    iterations = round(options.seconds * first.summary["steps_per_second"] / each)
    algorithm = dataclasses.replace(algorithm, total_steps=iterations * each)
    print(f"undisturbed, {iterations} iterations", flush=True)
    expected, _ = trained(algorithm)
    predicted = expected.summary["steps_per_second"]
    print(f"  {predicted:,.0f} steps/s\ndisturbed", flush=True)
    result, lines = trained(algorithm, predicted, iterations // 3, options.load, to_other_cores)
    differences = [
        float(np.abs(np.asarray(a) - np.asarray(b)).max())
        for a, b in zip(jax.tree.leaves(expected.params), jax.tree.leaves(result.params), strict=True)
    ]
    print(f"  {result.metrics[-1]['steps_per_second']:,.0f} steps/s at the end")
    print(f"largest difference of a parameter: {max(differences):g}")
    slow = [line for line in lines if "below the predicted" in line]
    assert len(slow) == 1, "it says once that it is slower than predicted"
    assert [change["engine"] for change in result.summary["changes"]] == [["local", "processes"]]
    assert max(differences) <= 1e-5


if __name__ == "__main__":
    main()
