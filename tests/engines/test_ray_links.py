"""A run on three Ray nodes with separate addresses, one of which loses its link to the others."""

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fragmenta
from fragmenta import PPO, Cluster
from namespaces import Network

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
]

TINY = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2)
FLAGS = "--num-envs 4 --horizon 8 --hidden 8 --epochs 1 --minibatches 2"
RAY_START = ("-m", "ray.scripts.scripts", "start")
STEPS = {"single_learner_coarse": 32_000, "multi_learner": 6_400}
"""Total steps by distribution policy; summing gradients between processes is slow."""
CHECKS = {"period_ms": "1000", "timeout_ms": "2000", "failure_threshold": "3"}
"""Settings from the guide: Ray detects a cut link after 8 s, and survives one of 5 s."""


def settings() -> dict[str, str]:
    """The environment variables of every command: a token, and Ray's default choice of addresses."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    checks = {f"RAY_health_check_{name}": value for name, value in CHECKS.items()}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    return {**inherited, **checks, **token, "PYTHONPATH": os.pathsep.join(sys.path)}


class Machines:
    """A Ray node in each namespace of a network; commands run in the first."""

    def __init__(self, network: Network, logs: Path) -> None:
        self._network, self._settings, self._logs = network, settings(), logs
        self._processes: list[subprocess.Popen[bytes]] = []
        self.address = f"{network.addresses[0]}:6379"
        self.folder = logs / "folder"
        self._start(0, *RAY_START, "--head", "--include-dashboard=false", *self._node(0))
        eventually(lambda: "Ray runtime started" in (logs / "0").read_text(), 60)
        for i in (1, 2):
            self._start(i, *RAY_START, f"--address={self.address}", *self._node(i))
            eventually(lambda i=i: "Ray runtime started" in (logs / str(i)).read_text(), 60)

    def train(self, policy: str, watchdog: float, run_dir: Path) -> subprocess.Popen[bytes]:
        """Start a run whose three fragments are on three nodes."""
        flags = f"{FLAGS} --total-steps {STEPS[policy]} --policy {policy} --replicas 2"
        flags += f" --engine ray --address {self.address} --placement spread --watchdog {watchdog}"
        flags += f" --run-dir {run_dir} --sinks none"
        return self.run("-m", "fragmenta.cli.main", "train", "ppo", "CartPole-v1", *flags.split())

    def run(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Python program in a separate folder on the first machine."""
        self.folder.mkdir(exist_ok=True)
        return self._start(0, *arguments, log="said", folder=self.folder)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _node(self, i: int) -> list[str]:
        return [f"--node-ip-address={self._network.addresses[i]}", "--num-cpus=3", "--block"]

    def _start(self, i: int, *arguments: str, log: str = "", folder: Path | None = None) -> subprocess.Popen[bytes]:
        command = [*self._network.inside(i), sys.executable, *arguments]
        with open(self._logs / (log or str(i)), "wb") as out:
            process = subprocess.Popen(
                command, env=self._settings, cwd=folder or self._logs, stdout=out, stderr=subprocess.STDOUT
            )
        self._processes.append(process)
        return process


def eventually(condition: Callable[[], Any], seconds: float) -> Any:
    """The value of `condition` as soon as it is true; fails if that takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    assert value, "did not happen in time"
    return value


def run_with_cut(policy: str, seconds: float | None, watchdog: float, folder: Path) -> tuple[dict[str, Any], str]:
    """The summary and output of a run in which one fragment's node loses its link for `seconds`, or forever if None."""
    metrics, log = folder / "run" / "metrics.jsonl", folder / "said"
    with Network(3) as network, contextlib.closing(Machines(network, folder)) as machines:
        run = machines.train(policy, watchdog, folder / "run")
        eventually(lambda: run.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") > 20), 120)
        assert run.poll() is None, log.read_text()
        cut = max(int(number) for number in re.findall("on machine-(.), node", log.read_text()))
        assert cut > 0, "no fragment is on a node of its own"
        network.cut(cut)
        if seconds is not None:
            time.sleep(seconds)
            network.mend(cut)
        assert run.wait(200) == 0, log.read_text()
    return json.loads((folder / "run" / "summary.json").read_text()), log.read_text()


def undisturbed(policy: str) -> str:
    cluster = Cluster(("cpu:0", "cpu:1", "cpu:2"), 2)
    result = fragmenta.train(TINY, "CartPole-v1", policy, total_steps=STEPS[policy], cluster=cluster)
    return result.summary["params_sha256"]


@pytest.mark.parametrize("policy", ["single_learner_coarse", "multi_learner"])
def test_a_cut_of_five_seconds_delays_a_run_and_changes_nothing(policy: str, tmp_path: Path) -> None:
    summary, output = run_with_cut(policy, 5.0, 15.0, tmp_path)
    assert "replaced" not in summary, output
    assert summary["params_sha256"] == undisturbed(policy)


def test_a_fragment_behind_a_link_that_stays_cut_is_replaced_elsewhere(tmp_path: Path) -> None:
    summary, output = run_with_cut("single_learner_coarse", None, 6.0, tmp_path)
    print(output)
    assert summary["replaced"]
    assert "has sent no heartbeat for" in output
    assert summary["params_sha256"] == undisturbed("single_learner_coarse")


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && node=${1#*=}; shift; done
[[ $1 == hostname ]] && echo "10.77.0.$((node + 1))" && exit
[[ $node == 0 ]] && exec ip netns exec MARKn0 "$@"
own='mkdir -p "$0" && mount --bind "$0" /tmp/ray && exec "$@"'
exec ip netns exec "MARKn$node" unshare --mount sh -c "$own" "FOLDER/$node" "$@"
"""


def test_the_slurm_script_starts_a_cluster_with_a_token_and_runs_on_it(tmp_path: Path) -> None:
    """With fake `scontrol` and `srun`, which run a command in a namespace.

    Nodes start at the same time, so each has its own Ray folder, as on separate machines.
    """
    (tmp_path / "scontrol").write_text("#!/bin/bash\nprintf '0\\n1\\n2\\n'\n")
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    job = {"SLURM_JOB_NODELIST": "0,1,2", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "3", "PATH": path}
    script = Path(__file__).parents[2] / "docs/cluster/slurm.sh"
    flags = f"train ppo CartPole-v1 {FLAGS} --total-steps 320 --policy single_learner_coarse --replicas 2"
    with Network(3) as network:
        (tmp_path / "srun").write_text(SRUN.replace("MARKn", network.space(0)[:-1]).replace("FOLDER", str(tmp_path)))
        for name in ("scontrol", "srun"):
            (tmp_path / name).chmod(0o755)
        command = [*network.inside(0), "bash", str(script), *flags.split(), "--placement", "spread"]
        env = settings() | job
        completed = subprocess.run(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=200)
    assert completed.returncode == 0, completed.stdout
    assert len(set(re.findall(r"node (\w{8}),", completed.stdout))) == 3


MINE = """
from fragmenta.envs.classic import CartPole

class Mine(CartPole):
    pass
"""
PROGRAM = """
import sys
import fragmenta
from mine import Mine

class Where:
    def planned(self, *_): ...
    def compiled(self, *_): ...
    def remarked(self, *_): ...
    def progressed(self, *_): ...
    def placed(self, workers): print("hosts", *sorted(worker.host for worker in workers))

tiny = fragmenta.PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=320)
cluster = fragmenta.Cluster(("cpu:0", "cpu:1", "cpu:2"), 2, apart=True)
options = fragmenta.RunOptions(engine=fragmenta.EngineOptions(sys.argv[1], "spread"))
fragmenta.train(tiny, Mine(), "single_learner_coarse", "ray", cluster=cluster, options=options, watcher=Where())
"""


def test_modules_beside_the_program_are_found_on_other_machines(tmp_path: Path) -> None:
    with Network(3) as network, contextlib.closing(Machines(network, tmp_path)) as machines:
        machines.folder.mkdir()
        (machines.folder / "mine.py").write_text(MINE)
        (machines.folder / "program.py").write_text(PROGRAM)
        code = machines.run("program.py", machines.address).wait(200)
    output = (tmp_path / "said").read_text()
    assert code == 0, output
    assert "hosts machine-0 machine-1 machine-2" in output
