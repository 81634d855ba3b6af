"""A long run and many restarts of environments on the host: memory is flat, no process or shared memory is left.

python benchmarks/host_soak.py --minutes 20 --starts 1000
"""

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fragmenta
from fragmenta_host.catalogue import Spec
from fragmenta_host.options import PoolOptions
from fragmenta_host.pool import Pool

SETTLED = 0.2
"""The fraction of a run after which memory must not grow."""


def memory() -> float:
    """The memory of this process and its children in MB."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(process.memory_info().rss for process in processes) / 1e6


class Watch:
    """A watcher that samples memory every ten seconds and ends the run when the time is over."""

    def __init__(self, minutes: float) -> None:
        self.end, self.samples, self.last = minutes * 60, [], 0.0

    def planned(self, *_: Any) -> None:
        self.started = time.monotonic()

    def placed(self, *_: Any) -> None:
        pass

    def remarked(self, text: str) -> None:
        pass

    def compiled(self, seconds: float) -> None:
        self.started = time.monotonic()

    def progressed(self, progress: Any) -> None:
        now = time.monotonic() - self.started
        if now - self.last >= 10:
            self.last = now
            self.samples.append((now, memory(), psutil.Process().num_fds(), progress.steps))
        if now > self.end:
            raise KeyboardInterrupt


def train(minutes: float) -> bool:
    watch = Watch(minutes)
    algorithm = fragmenta.PPO(num_envs=64, total_steps=10**9, normalize_observations=True, normalize_rewards=True)
    with contextlib.suppress(KeyboardInterrupt):
        fragmenta.train(algorithm, "gymnasium:HalfCheetah-v5", watcher=watch)
    settled = [row for row in watch.samples if row[0] > SETTLED * watch.end]
    third = max(1, len(settled) // 3)
    early, late = (float(np.median([row[1] for row in rows])) for rows in (settled[:third], settled[-third:]))
    files = settled[0][2], settled[-1][2]
    flat = late < 1.02 * early and files[0] == files[1]
    last = watch.samples[-1]
    print(f"HalfCheetah-v5 for {last[0] / 60:.0f} min, {last[3]:,} steps: memory {early:,.0f} MB "
          f"early, {late:,.0f} MB late; open files {files[0]}, {files[1]}: {'flat' if flat else 'GROWS'}")  # fmt: skip
    return flat


def start_and_stop(count: int) -> bool:
    environments = Pool(Spec("gymnasium", "CartPole-v1"), PoolOptions(mode="processes", workers=2))
    names, files = set(os.listdir("/dev/shm")), psutil.Process().num_fds()
    started = time.monotonic()
    for _ in range(count // 2):
        environments.reset(np.arange(4))
        environments.step(0, np.zeros(4, np.int32))
        environments.close()
    seconds = time.monotonic() - started
    left = psutil.Process().children(recursive=True)
    new_names, new_files = set(os.listdir("/dev/shm")) - names, psutil.Process().num_fds() - files
    print(f"{count} worker processes started and stopped in {seconds:.0f} s: {len(left)} left, "
          f"{len(new_names)} names of shared memory, {new_files} open files")  # fmt: skip
    return not left and not new_names and new_files <= 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--starts", type=int, default=1_000)
    options = parser.parse_args()
    os.chdir(Path(os.environ.get("TMPDIR", "/tmp")))  # MuJoCo writes its log to the working directory
    fine = start_and_stop(options.starts) if options.starts else True
    fine &= train(options.minutes) if options.minutes else True
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
