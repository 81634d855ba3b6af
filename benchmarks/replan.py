"""Load on one core in the middle of a run with --replan: the lines about it, the speeds, the parameters at the end.

On a quiet machine, the planner chooses a process per core for these environments. After a sixteenth of the run, other
processes compute on the first core, so that one of its workers is slow and the others wait for it. The planner moves
the run. Its parameters are compared with those of a run that nothing disturbed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import fragmenta
from fragmenta import EngineOptions, RunOptions
from fragmenta.algorithms import Algorithm
from fragmenta.engines import ProcessLocation, engine_named
from fragmenta.engines.hardware import ensure_cpu_devices
from fragmenta.graph import Plan
from fragmenta.progress.watching import Progress

CORES = sorted(os.sched_getaffinity(0))
BUSY = f"import os\nos.sched_setaffinity(0, {CORES[:1]})\nwhile True: pass"
SETTLING_SECONDS = 1.0
"""What follows the start of a run, of the load, or under a new plan does not count as its speed at first."""
ENV = "gymnasium:CartPole-v1"


class Disturbance:
    """A watcher that starts the load after so many steps, prints the lines about the run, and keeps its speeds."""

    def __init__(self, at: int, processes: int) -> None:
        self._at, self._count, self._began = at, processes, time.monotonic()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._phase, self._since = "before", 0.0
        self.reached: dict[str, list[tuple[float, int]]] = {}
        """By phase, the steps that were done at some times."""
        self.lines: list[str] = []

    def planned(self, plan: Plan, algorithm: Algorithm, steps: int, environments: str) -> None: ...
    def placed(self, workers: Sequence[ProcessLocation]) -> None: ...

    def compiled(self, seconds: float) -> None:
        self._enter("before")

    def progressed(self, progress: Progress) -> None:
        now = time.monotonic()
        if now > self._since + SETTLING_SECONDS:
            self.reached.setdefault(self._phase, []).append((now, progress.steps))
        if progress.steps >= self._at and not self._processes and self._count:
            self.print(f"{self._count} other processes begin to compute on core {CORES[0]}")
            self._processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(self._count)]
            self._enter("under load")

    def remarked(self, text: str) -> None:
        self.lines.append(text)
        self.print(text)
        if text.startswith("after "):
            self._enter("under load, after the change")

    def print(self, text: str) -> None:
        print(f"  {time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _enter(self, phase: str) -> None:
        self._phase, self._since = phase, time.monotonic()


def trained(algorithm: fragmenta.PPO, load_at: int, load: int, **placed: Any) -> tuple[fragmenta.Result, Disturbance]:
    watcher = Disturbance(load_at, load)
    try:
        return fragmenta.train(algorithm, ENV, watcher=watcher, **placed), watcher
    finally:
        watcher.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--total-steps", type=int, default=2**23)
    parser.add_argument("--load", type=int, default=3, help="processes that compute on the first core")
    options = parser.parse_args()
    if len(CORES) < 2:
        parser.error("this needs two cores")
    with tempfile.TemporaryDirectory() as cache:  # nothing is known of this machine
        os.environ["XDG_CACHE_HOME"] = cache
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Train with the load and without, and compare."""
    command = "from fragmenta_launch.console import main; main()"
    plan = [sys.executable, "-c", command, "plan", "ppo", ENV, "--num-envs", str(options.num_envs)]
    # Among all, the time for comparing before training may end before the fastest is measured.
    subprocess.run([*plan, "--policy", "single_learner_coarse", "--seconds", "30"], check=True)
    ensure_cpu_devices(len(CORES))
    algorithm = fragmenta.PPO(num_envs=options.num_envs, total_steps=options.total_steps)
    print("disturbed", flush=True)
    replan = RunOptions(sinks=(), replan=True)
    result, watcher = trained(algorithm, options.total_steps // 16, options.load, options=replan)
    for phase, reached in watcher.reached.items():
        (began, first), (ended, last) = reached[0], reached[-1]
        print(f"  {phase}: {(last - first) / (ended - began):,.0f} steps/s")
    if [change.get("engine") for change in result.summary.get("changes", [])] != [["processes", "local"]]:
        sys.exit("the run did not move from processes to this one: was the machine quiet before the load?")
    (change,) = result.summary["changes"]
    before = {name: change.get(name, [result.summary.get(name)])[0] for name in ("policy", "engine", "replicas")}
    print(f"undisturbed, {before['policy']} x{before['replicas']} on {before['engine']}", flush=True)
    cluster = engine_named(before["engine"]).cluster(EngineOptions(), before["replicas"])
    placed = {"policy": before["policy"], "engine": before["engine"], "cluster": cluster}
    expected, _ = trained(algorithm, 0, 0, options=RunOptions(sinks=()), **placed)
    print(f"  {expected.summary['steps_per_second']:,.0f} steps/s")
    pairs = zip(jax.tree.leaves(expected.params), jax.tree.leaves(result.params), strict=True)
    difference = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
    print(f"largest difference of a parameter: {difference:g}")
    assert difference == 0


if __name__ == "__main__":
    main()
