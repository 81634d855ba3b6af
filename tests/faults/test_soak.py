"""A long run: memory, open files and threads stay constant."""

import gc
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import fragmenta
from fragmenta import EvaluationOptions, RunOptions, SaveOptions
from soak_run import Sample, complaints

ITERATIONS = 200_000 if os.environ.get("CHAOS") else 3_000
GROWTH_MB = 30.0
BLOCKS = 8.0
"""Allowed growth in Python memory blocks per iteration, on average: some records wait to be written, but a leak of one
record per iteration would be twenty."""


class Looker:
    """A watcher that samples the resources of the process after a third of the run and at its end."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, float, int, int, int]] = []

    def planned(self, *_: Any) -> None: ...
    def placed(self, *_: Any) -> None: ...
    def remarked(self, text: str) -> None: ...

    def compiled(self, seconds: float) -> None: ...

    def progressed(self, progress: Any) -> None:
        if progress.iteration in (progress.iterations // 3, progress.iterations - 5):
            gc.collect()
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
            self.samples.append((progress.iteration, resident, sys.getallocatedblocks(), files, threads))


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.timeout(7_200)
def test_a_long_run_uses_no_more_resources_than_a_short_one(tmp_path: Path) -> None:
    looker = Looker()
    algorithm = fragmenta.PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2)
    options: dict[str, Any] = {
        "options": RunOptions(
            saving=SaveOptions(checkpoint_every=250), evaluation=EvaluationOptions(eval_every=250, eval_episodes=2)
        ),
    }
    # A warm-up run, so that imports and compilation do not count as growth.
    fragmenta.train(algorithm, "CartPole-v1", total_steps=250 * 32, run_dir=tmp_path / "warm", **options)
    fragmenta.train(
        algorithm, "CartPole-v1", total_steps=ITERATIONS * 32, run_dir=tmp_path / "run", watcher=looker, **options
    )
    (first, early, blocks, files, threads), (last, late, blocks_late, files_late, threads_late) = looker.samples
    assert late - early < GROWTH_MB
    assert (blocks_late - blocks) / (last - first) < BLOCKS
    assert abs(files_late - files) <= 8, "a checkpoint may be half written at either time"
    assert threads_late <= threads + 8


STEADY = [Sample(60.0 * i, 500.0, 10, 30, 1_000 * i, 1_000.0) for i in range(1, 31)]


def test_the_soak_benchmark_detects_growth_and_slowdown() -> None:
    assert complaints(STEADY, 30, 0.05) == []
    for name, change, message in (
        ("memory_mb", lambda i: 500 + 2.0 * i, "memory_mb grew"),
        ("files", lambda i: 10 + i, "files grew"),
        ("threads", lambda i: 30 + i, "threads grew"),
        ("steps_per_second", lambda i: 1_000 - 4.0 * i, "speed fell"),
    ):
        (complaint,) = complaints([s._replace(**{name: change(i)}) for i, s in enumerate(STEADY)], 30, 0.05)
        assert complaint.startswith(message)
    warming_up = [s._replace(memory_mb=100.0) for s in STEADY[:3]]
    assert complaints(warming_up + STEADY[3:], 30, 0.05) == []
    assert complaints(STEADY[:2], 30, 0.05) == ["the run was too short to tell"]
