"""A run that is killed keeps its best state, and goes on from there."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fragmenta
from fragmenta.runs.checkpoints import EVALUATION, CheckpointFolder

FLAGS = ["--num-envs", "4", "--horizon", "8", "--hidden", "8", "--eval-every", "20", "--eval-episodes", "2"]


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]


@pytest.mark.full
def test_the_best_by_evaluation_survives_a_kill(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "fragmenta.cli.main", "train", "a2c", "CartPole-v1", *FLAGS]
    endless = ["--total-steps", "100000000", "--run-dir", str(run)]
    child = subprocess.Popen([*command, *endless], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = CheckpointFolder(run / "checkpoints")
    try:
        until = time.monotonic() + 200
        while folder.best() is None and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    before = folder.best()
    assert before is not None, "it was written although no checkpoint was due"
    assert before.measure == EVALUATION
    assert before.score in [record["return_mean"] for record in evaluations(run)]
    began = folder.newest()
    fragmenta.resume(run, total_steps=began.steps + 100 * 32, progress=False)
    after = folder.best()
    assert after is not None
    later = [record["return_mean"] for record in evaluations(run) if record["iteration"] > began.iteration]
    assert after.score == max([before.score, *later])
