"""A run on three Ray nodes with an address each, of which one loses its link to the others."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from namespaces import Network

import fragmenta
from fragmenta import PPO, Cluster

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
]

ITERATIONS = 1_000
TINY = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=ITERATIONS * 32)
FLAGS = f"--num-envs 4 --horizon 8 --hidden 8 --epochs 1 --minibatches 2 --total-steps {ITERATIONS * 32}"
CHECKS = {"period_ms": "1000", "timeout_ms": "2000", "failure_threshold": "3", "initial_delay_ms": "0"}
"""How the guide lets Ray notice a cut link after 8 s, and outlive one of five."""


def settings() -> dict[str, str]:
    """The environment of every command: a token, and Ray's own choice of addresses."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    checks = {f"RAY_health_check_{name}": value for name, value in CHECKS.items()}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    return {**kept, **checks, **token, "PYTHONPATH": os.pathsep.join(sys.path)}


class Machines:
    """A Ray node in each namespace of a network, and commands in the first."""

    def __init__(self, network: Network, logs: Path) -> None:
        self._network, self._settings, self._logs = network, settings(), logs
        self._started: list[subprocess.Popen[bytes]] = []
        self.address = f"{network.addresses[0]}:6379"
        self._start(0, "ray.scripts.scripts", "start", "--head", "--include-dashboard=false", *self._node(0))
        eventually(lambda: "Ray runtime started" in (logs / "0").read_text(), 60)
        for i in (1, 2):
            self._start(i, "ray.scripts.scripts", "start", f"--address={self.address}", *self._node(i))
        for i in (1, 2):
            eventually(lambda i=i: "Ray runtime started" in (logs / str(i)).read_text(), 60)

    def train(self, policy: str, watchdog: float, run_dir: Path) -> subprocess.Popen[bytes]:
        """Start a run whose three fragments are on three nodes."""
        flags = f"{FLAGS} --policy {policy} --replicas 2 --engine ray --address {self.address}"
        flags += f" --placement spread --watchdog {watchdog} --run-dir {run_dir} --sinks none"
        return self._start(0, "fragmenta.cli.main", "train", "ppo", "CartPole-v1", *flags.split(), log="train")

    def close(self) -> None:
        """End all that was started."""
        for process in self._started:
            process.kill()
            process.wait()

    def _node(self, i: int) -> list[str]:
        return [f"--node-ip-address={self._network.addresses[i]}", "--num-cpus=3", "--block"]

    def _start(self, i: int, module: str, *arguments: str, log: str = "") -> subprocess.Popen[bytes]:
        command = [*self._network.inside(i), sys.executable, "-m", module, *arguments]
        with open(self._logs / (log or str(i)), "wb") as out:
            started = subprocess.Popen(command, env=self._settings, stdout=out, stderr=subprocess.STDOUT)
        self._started.append(started)
        return started


def eventually(what: Callable[[], Any], seconds: float) -> Any:
    """What is true or found within this time."""
    end = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < end:
        time.sleep(0.1)
    assert found, "did not happen in time"
    return found


def run_with_cut(policy: str, seconds: float | None, watchdog: float, folder: Path) -> tuple[dict[str, Any], str]:
    """A run during which the link of the third node is cut, for so long or for good: its summary, and what it said."""
    metrics, log = folder / "run" / "metrics.jsonl", folder / "train"
    with Network(3) as network, contextlib.closing(Machines(network, folder)) as machines:
        run = machines.train(policy, watchdog, folder / "run")
        eventually(lambda: run.poll() is not None or (metrics.exists() and len(metrics.read_text()) > 20_000), 120)
        assert run.poll() is None, log.read_text()
        network.cut(2)
        if seconds is not None:
            time.sleep(seconds)
            network.mend(2)
        assert run.wait(200) == 0, log.read_text()
    return json.loads((folder / "run" / "summary.json").read_text()), log.read_text()


def undisturbed(policy: str) -> str:
    cluster = Cluster(("cpu:0", "cpu:1", "cpu:2"), 2)
    return fragmenta.train(TINY, "CartPole-v1", policy, cluster=cluster).summary["params_sha256"]


@pytest.mark.parametrize("policy", ["single_learner_coarse", "multi_learner"])
def test_a_cut_of_five_seconds_delays_a_run_and_changes_nothing(policy: str, tmp_path: Path) -> None:
    summary, said = run_with_cut(policy, 5.0, 15.0, tmp_path)
    assert "replaced" not in summary, said
    assert summary["params_sha256"] == undisturbed(policy)


def test_a_fragment_behind_a_link_that_stays_cut_is_replaced_elsewhere(tmp_path: Path) -> None:
    summary, said = run_with_cut("single_learner_coarse", None, 6.0, tmp_path)
    print(said)
    assert summary["replaced"]
    assert "has given no sign of life for" in said
    assert summary["params_sha256"] == undisturbed("single_learner_coarse")
