"""A run with processes that is interrupted or killed or loses a process: messages, leftovers and open ports."""

import contextlib
import ipaddress
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from long_runs import TRAIN, go_on, start, wait_for_iterations

TINY = ["--num-envs", "4", "--horizon", "8", "--hidden", "8", "--epochs", "1", "--minibatches", "2"]
PROCESSES = ["CartPole-v1", *TINY, "--engine", "processes", "--replicas", "2", "--cpu-devices", "3"]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def begin(run_dir: Path) -> Iterator:
    """Starts a run and waits until it trains; always ends it after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*flags: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        started.append(start(*flags, run_dir=run_dir))
        wait_for_iterations(started[0], run_dir)
        while "--checkpoint-every" in flags and not list((run_dir / "checkpoints").glob("0*")):
            assert started[0].poll() is None, started[0].communicate()
            time.sleep(0.05)
        return started[0], psutil.Process(started[0].pid).children(recursive=True)

    yield run
    for process in started:
        process.kill()
        process.communicate()


def listening(processes: list[psutil.Process]) -> list[str]:
    """The addresses that these processes listen on, as in /proc/net/tcp and tcp6."""
    connections = [c for process in processes for c in process.net_connections("tcp") if c.status == "LISTEN"]
    return [c.laddr.ip.removeprefix("::ffff:") for c in connections]


@pytest.mark.full
def test_a_local_run_listens_nowhere(begin) -> None:
    process, children = begin("gymnasium:CartPole-v1", *TINY, "--env-mode", "processes", "--env-workers", "2")
    assert children, "environments have processes of their own, which need no socket either"
    assert listening([psutil.Process(process.pid), *children]) == []


def test_processes_listen_on_loopback_only_and_ctrl_c_saves_and_leaves_none(begin, run_dir: Path) -> None:
    process, members = begin(*PROCESSES, "--policy", "multi_learner")
    assert len(members) == 2
    heard_on = [listening([each]) for each in (psutil.Process(process.pid), *members)]
    assert all(heard_on), "the coordinator listens for its processes, and they for each other's sums"
    assert all(ipaddress.ip_address(ip).is_loopback for ips in heard_on for ip in ips), heard_on
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=30)
    assert process.returncode == 130
    assert not psutil.wait_procs(members, 5)[1]
    (line,) = output.splitlines()
    assert re.match(r"fragmenta: SIGINT: saved after [\d,]+ of .* steps; continue with: fragmenta resume", line), output
    assert list((run_dir / "checkpoints").iterdir())


RAY = ["CartPole-v1", *TINY, "--engine", "ray", "--cpu-devices", "2", "--no-merge"]


@pytest.mark.full
def test_preempted_a_run_on_ray_saves_and_leaves_no_process(begin, run_dir: Path) -> None:
    process, servers = begin(*RAY, "--policy", "single_learner_coarse")
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not psutil.wait_procs(servers, 10)[1]
    assert re.match(r"fragmenta: SIGTERM: saved after .*; continue with", output.splitlines()[-1]), output
    assert "received at time" not in output, "Ray's own handler"
    assert list((run_dir / "checkpoints").iterdir())


@pytest.mark.full
@pytest.mark.parametrize("gap", [0.05, 1.0])
def test_interrupted_twice_a_run_on_ray_ends_in_seconds_and_leaves_no_process(gap: float, begin) -> None:
    process, servers = begin(*RAY, "--policy", "single_learner_coarse")
    process.send_signal(signal.SIGINT)
    time.sleep(gap)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert not psutil.wait_procs(servers, 10)[1]


@pytest.mark.full
@pytest.mark.parametrize("policy", ["single_learner_coarse", pytest.param("central", marks=pytest.mark.full)])
def test_a_killed_coordinator_leaves_no_process_and_the_run_can_be_resumed(policy: str, begin, run_dir: Path) -> None:
    process, members = begin(*PROCESSES, "--policy", policy, "--checkpoint-every", "1")
    assert len(members) == 3
    members[0].send_signal(signal.SIGSTOP)  # even a stuck process must end
    process.kill()
    process.communicate(timeout=10)
    assert not psutil.wait_procs(members, 5)[1]
    summary = go_on(run_dir)
    assert (summary["policy"], summary["engine"]) == (policy, "processes")


@pytest.mark.full
@pytest.mark.brief("local-fork")
@pytest.mark.parametrize("fault", ["fork", "multiprocessing"])
@pytest.mark.parametrize("engine", ["local", "processes", "ray"])
def test_a_run_with_environments_that_start_processes_ends_and_leaves_none(
    engine: str, fault: str, tmp_path: Path
) -> None:
    flags = ["--env-args", f'{{"fault": "{fault}"}}', "--env-mode", "serial", "--total-steps", "64"]
    command = [*TRAIN, "faulty_envs:Steady", *TINY, *flags, "--engine", engine, "--run-dir", str(tmp_path / "run")]
    support, marked = Path(__file__).parents[1] / "support", {**os.environ, "STARTED_FOR": str(tmp_path)}
    with (tmp_path / "output").open("w") as output:  # not a pipe, which those processes would hold open
        ended = subprocess.run(command, cwd=support, env=marked, stdout=output, stderr=output, timeout=120)
    left = [process for process in psutil.process_iter() if _started_for(process) == str(tmp_path)]
    for process in left:
        process.kill()
    assert ended.returncode == 0, (tmp_path / "output").read_text()
    forked_here = (engine, fault) == ("local", "fork")  # nobody knows of these but the environment
    assert bool(left) == forked_here, left


def _started_for(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("STARTED_FOR")
    return None


@pytest.mark.full
def test_a_loss_beyond_the_budget_is_one_line(begin) -> None:
    process, members = begin(*PROCESSES, "--policy", "single_learner_coarse", "--restarts", "0")
    members[1].kill()
    _, output = process.communicate(timeout=30)
    assert process.returncode == 1
    assert not psutil.wait_procs(members, 5)[1]
    (line,) = output.splitlines()
    assert re.match(r"fragmenta: (actor\[\d\]|learner) was killed by SIGKILL", line), output
