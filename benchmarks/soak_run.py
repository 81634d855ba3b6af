"""One long run with checkpoints, TensorBoard and evaluation: memory, open files, threads and speed must stay constant.

    python benchmarks/soak_run.py --minutes 120

Samples every minute, or twenty times in a shorter run. After a warm-up of one tenth, the medians of the first and the
last third of the samples are compared. Exits with 1 if anything grew or speed fell.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import fragmenta
from fragmenta.engines.hardware import local_cluster, use_cpu_devices
from fragmenta.training.stopping import StoppedError

WARM_UP = 0.1
"""The fraction of the run that is ignored."""
FILES, THREADS = 8, 4
"""Allowed increase in open files: a checkpoint may be half written at either time."""


class Sample(NamedTuple):
    """A sample of resource usage; speed is measured since the previous sample."""

    seconds: float
    memory_mb: float
    files: int
    threads: int
    steps: int
    steps_per_second: float


class Watch:
    """A watcher that takes samples, and ends the run like Ctrl-C when the time is over."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._every = seconds, min(60.0, seconds / 20)
        self.samples: list[Sample] = []
        self._ended = False

    def planned(self, *_: Any) -> None: ...

    def placed(self, *_: Any) -> None: ...
    def remarked(self, text: str) -> None: ...

    def compiled(self, seconds: float) -> None:
        self._began = time.monotonic()
        self._last = Sample(0.0, 0.0, 0, 0, 0, 0.0)

    def progressed(self, progress: Any) -> None:
        now = time.monotonic() - self._began
        if now - self._last.seconds >= self._every:
            self._last = take_sample(now, progress.steps, self._last)
            self.samples.append(self._last)
            print(format_sample(self._last), flush=True)
        if now > self._seconds and not self._ended:
            self._ended = True
            os.kill(os.getpid(), signal.SIGINT)


def take_sample(now: float, steps: int, last: Sample) -> Sample:
    here = psutil.Process()
    processes = [here, *here.children(recursive=True)]
    # Resident memory without file mappings, which the system evicts and reloads at will.
    memory = sum((m := process.memory_info()).rss - m.shared for process in processes) / 1e6
    files, threads = sum(p.num_fds() for p in processes), sum(p.num_threads() for p in processes)
    return Sample(now, memory, files, threads, steps, (steps - last.steps) / (now - last.seconds))


def format_sample(s: Sample) -> str:
    resources = f"{s.memory_mb:8,.0f} MB  {s.files:4} files  {s.threads:4} threads"
    return f"{s.seconds / 60:6.1f} min  {resources}  {s.steps_per_second:12,.0f} steps/s  {s.steps:15,} steps"


def complaints(samples: list[Sample], growth_mb: float, slower: float) -> list[str]:
    """What grew or slowed down; empty if all is well."""
    settled = [s for s in samples if s.seconds > WARM_UP * samples[-1].seconds]
    third = len(settled) // 3
    if third < 1:
        return ["the run was too short to tell"]
    first, last = settled[:third], settled[-third:]

    def both(name: str) -> tuple[float, float]:
        early, late = (statistics.median(getattr(s, name) for s in part) for part in (first, last))
        return early, late

    problems = []
    for name, most in (("memory_mb", growth_mb), ("files", FILES), ("threads", THREADS)):
        early, late = both(name)
        print(f"{name}: {early:,.0f} early, {late:,.0f} late, may grow by {most:g}")
        if late - early > most:
            problems.append(f"{name} grew from {early:,.0f} to {late:,.0f}")
    early, late = both("steps_per_second")
    print(f"steps_per_second: {early:,.0f} early, {late:,.0f} late, may fall by {slower:.0%}")
    if late < (1 - slower) * early:
        problems.append(f"speed fell from {early:,.0f} to {late:,.0f} steps/s")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--policy", default="single_learner_coarse")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--growth-mb", type=float, default=30.0)
    parser.add_argument("--slower", type=float, default=0.05, help="the share of its speed that a run may lose")
    options = parser.parse_args()
    use_cpu_devices(2)
    watch = Watch(60 * options.minutes)
    algorithm = fragmenta.PPO(num_envs=options.num_envs, total_steps=10**10)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        try:
            fragmenta.train(
                algorithm,
                options.env,
                options.policy,
                cluster=local_cluster(),
                run_dir=run,
                watcher=watch,
                options=fragmenta.RunOptions(
                    saving=fragmenta.SaveOptions(checkpoint_every=100),
                    evaluation=fragmenta.EvaluationOptions(eval_every=500),
                    merge=False,
                ),
            )
        except StoppedError as stopped:
            print(stopped)
        sizes = {path.name: path.stat().st_size / 1e6 for path in run.glob("*.jsonl")}
        print(f"on disk: {', '.join(f'{name} {size:,.0f} MB' for name, size in sizes.items())}")
    problems = complaints(watch.samples, options.growth_mb, options.slower)
    print("; ".join(problems) or "all is as it was")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
