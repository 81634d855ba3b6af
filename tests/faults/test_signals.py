"""A run that is interrupted, preempted or killed: what it leaves behind, and that it can be resumed."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fragmenta.cli.main import main

TRAIN = [sys.executable, "-m", "fragmenta.cli.main", "train", "ppo"]
TINY = ["--num-envs", "4", "--horizon", "8", "--hidden", "8", "--epochs", "1", "--minibatches", "2"]
LONG = ["--policy", "single_learner_coarse", "--total-steps", "100000000"]
PROCESSES = ["gymnasium:CartPole-v1", "--env-mode", "processes", "--env-workers", "2"]
SHARED_MEMORY = Path("/dev/shm")


class Started:
    """A running command with environments in processes."""

    def __init__(self, run_dir: Path, *flags: str) -> None:
        self.run_dir, self._names_before = run_dir, set(SHARED_MEMORY.glob("*"))
        command = [*TRAIN, *PROCESSES, *TINY, *LONG, *flags, "--run-dir", str(run_dir)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # if the test failed before the run ended
        self.process.communicate()

    def records(self) -> list[dict]:
        """The records of all complete lines."""
        metrics = self.run_dir / "metrics.jsonl"
        lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def checkpoints(self) -> list[Path]:
        return sorted((self.run_dir / "checkpoints").glob("0*"))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "it does not come to train"
            time.sleep(0.02)

    def end(self, *signals: signal.Signals) -> tuple[int, str]:
        """Send signals after a few iterations, assert that nothing is left behind, and return exit code and output."""
        self.wait_until(lambda: len(self.records()) >= 3)
        children = psutil.Process(self.process.pid).children(recursive=True)
        assert children
        for number in signals:
            self.process.send_signal(number)
        _, output = self.process.communicate(timeout=10)
        _, left = psutil.wait_procs(children, 5)
        assert not left
        assert set(SHARED_MEMORY.glob("*")) <= self._names_before
        return self.process.returncode, output


def go_on(run: Started, capsys: pytest.CaptureFixture[str]) -> dict:
    """Resume for a few iterations, and return the summary."""
    steps = run.records()[-1]["steps"] + 64
    assert main(["resume", str(run.run_dir), "--total-steps", str(steps), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_interrupted_while_it_loads_it_says_so_in_one_line() -> None:
    start = "import sys, fragmenta_launch.console as console; print('up', flush=True); sys.exit(console.main())"
    process = subprocess.Popen([sys.executable, "-c", start, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)  # of the two seconds that loading takes
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.decode()) == (130, "fragmenta: interrupted\n")


@pytest.mark.parametrize(
    ("signal_number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.full)]
)
def test_interrupted_or_preempted_it_saves_says_how_to_resume_and_loses_nothing(
    signal_number: signal.Signals, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Started(tmp_path / "run") as run:
        exit_code, output = run.end(signal_number)
    assert exit_code == code
    (line,) = output.splitlines()
    assert line.startswith(f"fragmenta: {signal_number.name}: saved after ")
    assert line.endswith(f"continue with: fragmenta resume {run.run_dir}")
    records = run.records()
    assert int(run.checkpoints()[-1].name) == len(records), "the checkpoint has every iteration that was done"
    assert go_on(run, capsys)["total_steps"] > records[-1]["steps"]


@pytest.mark.full
def test_interrupted_twice_it_ends_at_once(tmp_path: Path) -> None:
    with Started(tmp_path / "run") as run:
        exit_code, output = run.end(signal.SIGINT, signal.SIGINT)
    assert exit_code == 130
    assert "Traceback" not in output


@pytest.mark.full
def test_a_signal_for_a_process_that_an_environment_forked_is_not_one_for_the_run(tmp_path: Path) -> None:
    support = Path(__file__).parents[1] / "support"
    flags = ["--env-args", '{"fault": "fork"}', "--env-mode", "serial", "--run-dir", str(tmp_path / "run")]
    command = [*TRAIN, "faulty_envs:Steady", *TINY, *LONG, *flags]
    with (tmp_path / "output").open("w") as output:  # not a pipe, which the forked processes would hold open
        process = subprocess.Popen(command, cwd=support, stdout=output, stderr=output, start_new_session=True)
        metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
        try:
            while not metrics.exists() or metrics.read_text().count("\n") < 3:
                assert process.poll() is None, (tmp_path / "output").read_text()
                assert time.monotonic() < deadline, "it does not come to train"
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
            assert process.wait(60) == 128 + signal.SIGINT
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "fragmenta: SIGINT: saved after " in (tmp_path / "output").read_text()


SLOW_TO_COMPILE = """
import dataclasses, hashlib, os, fragmenta

@dataclasses.dataclass(frozen=True)
class Slow(fragmenta.PPO):
    def init(self, env, key):
        if os.path.exists("run/config.json"):  # else it is only being planned
            print("compiling now", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**8)  # Python's handlers wait for it, as for a compilation
        return super().init(env, key)
"""


@pytest.mark.full
def test_interrupted_while_compiling_it_says_so_at_once_and_the_second_time_it_ends(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TO_COMPILE)
    command = [*TRAIN[:-1], "slow:Slow", "CartPole-v1", *TINY, "--run-dir", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stderr
        while "compiling now" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        line = process.stderr.readline()
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(10)
        seconds = time.monotonic() - sent
        rest = process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    assert line == "fragmenta: SIGINT: the run saves and ends after compiling; a second one ends it at once\n"
    assert (process.returncode, rest) == (130, "fragmenta: interrupted\n")
    assert seconds < 2, "and it does not wait for the compilation"


HANGING = """
import dataclasses, os, time
import jax, jax.numpy as jnp, numpy as np
import fragmenta

def sleep(x):
    print("hanging now", flush=True)
    time.sleep(3600)
    return np.asarray(x)

def hang(x):
    return jax.pure_callback(sleep, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

@dataclasses.dataclass(frozen=True)
class InInit(fragmenta.PPO):
    def init(self, env, key):
        state = super().init(env, key)
        return jax.tree.map(lambda x: x + hang(jnp.zeros(x.shape, x.dtype)) if x.dtype == jnp.float32 else x, state)

@dataclasses.dataclass(frozen=True)
class InIterate(fragmenta.PPO):
    def iterate(self, env, state):
        state, metrics = super().iterate(env, state)
        return state, {**metrics, "more": hang(metrics["policy_loss"])}
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "number"),
    [
        ("InInit", signal.SIGTERM),
        ("InIterate", signal.SIGTERM),
        pytest.param("InIterate", signal.SIGINT, marks=pytest.mark.full),
    ],
)
def test_a_program_that_hangs_is_ended_by_the_second_signal(
    algorithm: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    command = [*TRAIN[:-1], f"hanging:{algorithm}", "CartPole-v1", *TINY, "--run-dir", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        while "hanging now" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)
        time.sleep(0.5)  # two of the same at once may arrive as one
        assert process.poll() is None, "the first one asks it to end, which it cannot"
        sent = time.monotonic()
        process.send_signal(number)
        process.wait(10)
        seconds = time.monotonic() - sent
        _, output = process.communicate()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + number
    assert output.splitlines()[-1] == "fragmenta: interrupted"
    assert "Traceback" not in output
    assert seconds < 2


@pytest.mark.full
def test_a_closed_terminal_ends_it_saved(tmp_path: Path) -> None:
    own_terminal = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    )
    ours, theirs = os.openpty()
    command = [*TRAIN, "CartPole-v1", *TINY, *LONG, "--run-dir", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-c", own_terminal, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        while select.select([ours], [], [], 0.05)[0]:
            os.read(ours, 4096)
    os.close(ours)
    assert process.wait(30) == 128 + signal.SIGHUP
    (checkpoint,) = sorted((tmp_path / "run" / "checkpoints").glob("0*"))
    assert int(checkpoint.name) == metrics.read_text().count("\n")


def test_killed_it_leaves_no_process_and_resumes_from_its_last_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Started(tmp_path / "run", "--checkpoint-every", "1") as run:
        run.wait_until(lambda: len(run.checkpoints()) >= 2)  # saving may lag behind training
        exit_code, _ = run.end(signal.SIGKILL)
    assert exit_code == -signal.SIGKILL
    assert go_on(run, capsys)["policy"] == "single_learner_coarse"


@pytest.mark.full
def test_a_run_that_is_running_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Started(tmp_path / "run", "--checkpoint-every", "1") as run:
        run.wait_until(lambda: bool(run.checkpoints()))
        assert main(["resume", str(run.run_dir), "--json"]) == 2
        holder = f"process {run.process.pid} on {socket.gethostname()}"
        message = f"run directory '{run.run_dir}' is being written by {holder}: end that first, or wait for it"
        assert capsys.readouterr().err == f"fragmenta: {message}\n"
        records = len(run.records())
        run.wait_until(lambda: len(run.records()) > records)
        run.end(signal.SIGKILL)
    assert go_on(run, capsys), "a killed process holds nothing"


@pytest.mark.full
def test_two_runs_at_once_both_complete(tmp_path: Path) -> None:
    flags = ["CartPole-v1", *TINY, "--total-steps", "4096", "--json"]
    runs = [
        subprocess.Popen([*TRAIN, *flags, "--run-dir", str(tmp_path / name)], stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    summaries = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert summaries[0]["params_sha256"] == summaries[1]["params_sha256"]


def test_no_wait_or_rate_depends_on_wall_clock_time() -> None:
    source = Path(__file__).parents[2] / "src"
    users = [path.name for path in source.rglob("*.py") if "time.time(" in path.read_text()]
    # TensorBoard needs timestamps; nothing waits for those.
    assert users == ["sinks.py"], "a clock that jumps would disturb these: use time.monotonic"


def test_a_full_disk_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can be made by root only")
    try:
        flags = ["CartPole-v1", *TINY, *LONG, "--checkpoint-every", "2", "--run-dir", str(tmp_path / "run")]
        assert main(["train", "ppo", *flags]) == 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("fragmenta: cannot write ")
    assert line.endswith("No space left on device: the run has ended; free some disk space")
