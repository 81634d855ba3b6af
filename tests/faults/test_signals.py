"""A run that is interrupted, preempted or killed: what it leaves, and that it goes on from there."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

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
    """Resume for a little, and return the summary."""
    steps = [json.loads(line)["steps"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()[:-1]][-1]
    command = [*RESUME, str(run_dir), "--total-steps", str(steps + 2_000), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("which", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.full)]
)
def test_interrupted_or_preempted_it_saves_says_how_to_go_on_and_loses_nothing(
    which: signal.Signals, code: int, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    process = start("CartPole-v1", run_dir=run_dir)
    wait_for_iterations(process, run_dir)
    process.send_signal(which)
    _, said = process.communicate(timeout=10)
    assert process.returncode == code
    (line,) = said.splitlines()
    assert line.startswith(f"fragmenta: {which.name}: saved after ")
    assert line.endswith(f"go on with: fragmenta resume {run_dir}")
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    (newest,) = sorted((run_dir / "checkpoints").iterdir())[-1:]
    assert int(newest.name) == len(records), "the checkpoint has every iteration that was done"
    assert go_on(run_dir)["total_steps"] > records[-1]["steps"]


def test_interrupted_twice_it_ends_at_once(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start("CartPole-v1", run_dir=run_dir)
    wait_for_iterations(process, run_dir)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in said


@pytest.mark.parametrize("which", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_no_process_of_environments_outlives_the_run(which: signal.Signals, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = ["--env-mode", "processes", "--env-workers", "2", "--checkpoint-every", "1"]
    process = start("gymnasium:CartPole-v1", *flags, run_dir=run_dir)
    wait_for_iterations(process, run_dir)
    while len(list((run_dir / "checkpoints").glob("0*"))) < 2:  # the saver may be behind the iterations
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(which)
    process.communicate(timeout=10)
    _, left = psutil.wait_procs(children, 5)
    assert not left
    assert not list(Path("/dev/shm").glob("*fragmenta*"))
    assert go_on(run_dir)["policy"] == "single_learner_coarse"


@pytest.mark.full
def test_two_runs_at_once_both_complete(tmp_path: Path) -> None:
    flags = ["CartPole-v1", "--total-steps", "4096", "--json"]
    runs = [
        subprocess.Popen([*TRAIN, *flags, "--run-dir", str(tmp_path / name)], stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    found = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert found[0]["params_sha256"] == found[1]["params_sha256"]


def test_no_wait_or_rate_depends_on_the_clock_on_the_wall() -> None:
    source = Path(__file__).parents[2] / "src"
    named = [path.name for path in source.rglob("*.py") if "time.time(" in path.read_text()]
    # TensorBoard asks when it was; nothing waits for that.
    assert named == ["sinks.py"], "a clock that jumps would disturb these: use time.monotonic"


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can be made by root only")
    try:
        flags = ["CartPole-v1", *LONG, "--checkpoint-every", "2", "--run-dir", str(tmp_path / "run")]
        done = subprocess.run([*TRAIN, *flags], capture_output=True, text=True, timeout=120)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("fragmenta: cannot write ")
    assert line.endswith("No space left on device: the run has ended; free some space first")
