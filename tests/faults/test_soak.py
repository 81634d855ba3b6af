"""A run that goes on for long: memory, files and threads stay as they are."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import fragmenta
from fragmenta import EvaluationOptions, SaveOptions

ITERATIONS = 200_000 if os.environ.get("CHAOS") else 900
GROWTH_MB = 30.0


class Looker:
    """Notes what the process holds, at a third of the run and at its end."""

    def __init__(self) -> None:
        self.held: list[tuple[float, int, int]] = []

    def planned(self, *_: Any) -> None: ...
    def placed(self, *_: Any) -> None: ...

    def compiled(self, seconds: float) -> None: ...

    def progressed(self, progress: Any) -> None:
        if progress.iteration in (progress.iterations // 3, progress.iterations - 5):
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            self.held.append((resident, len(os.listdir("/proc/self/fd")), threading.active_count()))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.timeout(7_200)
def test_a_long_run_holds_no_more_than_a_short_one(tmp_path: Path) -> None:
    looker = Looker()
    algorithm = fragmenta.PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2)
    fragmenta.train(
        algorithm,
        "CartPole-v1",
        total_steps=ITERATIONS * algorithm.steps_per_iteration,
        run_dir=tmp_path / "run",
        watcher=looker,
        save_options=SaveOptions(checkpoint_every=50),
        evaluation=EvaluationOptions(eval_every=100, eval_episodes=2),
    )
    (early, files, threads), (late, files_late, threads_late) = looker.held
    assert late - early < GROWTH_MB
    assert abs(files_late - files) <= 8, "a checkpoint may be half written at either time"
    assert threads_late <= threads + 4
