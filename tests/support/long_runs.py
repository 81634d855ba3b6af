"""Command-line runs that continue until they are stopped."""

import json
import subprocess
import sys
import time
from pathlib import Path

TRAIN = [sys.executable, "-m", "fragmenta.cli.main", "train", "ppo"]
RESUME = [sys.executable, "-m", "fragmenta.cli.main", "resume"]
LONG = ["--total-steps", "100000000"]


def start(*arguments: str, run_dir: Path) -> subprocess.Popen[str]:
    command = [*TRAIN, *arguments, *LONG, "--run-dir", str(run_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_iterations(process: subprocess.Popen[str], run_dir: Path, count: int = 3) -> None:
    metrics = run_dir / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it does not come to train"
        time.sleep(0.05)


def go_on(run_dir: Path) -> dict:
    """Resume for a few iterations, and return the summary."""
    steps = [json.loads(line)["steps"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()[:-1]][-1]
    command = [*RESUME, str(run_dir), "--total-steps", str(steps + 2_000), "--json"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)
