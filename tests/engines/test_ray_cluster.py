"""A run on three Ray nodes: the result is the same although fragments, nodes and the command are killed or stopped."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest

import fragmenta
from fragmenta import PPO, Cluster, RunOptions
from fragmenta.cli.main import main
from fragmenta.engines import EngineOptions, ProcessLocation
from helpers import assert_same
from ray_nodes import Nodes

KILLS = 4 if os.environ.get("CHAOS") else 1
"""Kills per distribution policy."""
ITERATIONS = 200
TINY = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=ITERATIONS * 32)
DEVICES = ("cpu:0", "cpu:1", "cpu:2")
POLICIES = ("single_learner_coarse", "single_learner_fine", "central", "multi_learner", "fused")
WATCHDOG = 6.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


class Saboteur:
    """A watcher that injects a fault at given iterations; the next one only after the last was repaired."""

    def __init__(self, deed: Callable[[dict[str, ProcessLocation]], None], *at: int) -> None:
        self._deed, self._at = deed, sorted(at)
        self.workers: dict[str, ProcessLocation] = {}
        self.replaced: list[ProcessLocation] = []
        self.seconds: list[float] = []
        """The time from each fault until the replacement was ready."""
        self._since: float | None = None

    def planned(self, *_: Any) -> None: ...

    def compiled(self, seconds: float) -> None: ...

    def remarked(self, text: str) -> None: ...

    def placed(self, workers: Sequence[ProcessLocation]) -> None:
        if self.workers:
            self.replaced += workers
        if self._since is not None:
            self.seconds.append(time.monotonic() - self._since)
            self._since = None
        self.workers |= {worker.worker: worker for worker in workers}

    def progressed(self, progress: Any) -> None:
        if self._since is None and self._at and progress.iteration >= self._at[0]:
            self._at.pop(0)
            self._since = time.monotonic()
            self._deed(self.workers)


def harmless(workers: dict[str, ProcessLocation]) -> None: ...


@cache
def undisturbed(policy: str) -> Any:
    return fragmenta.train(TINY, "CartPole-v1", policy, cluster=Cluster(DEVICES, 2)).params


def run(nodes: Nodes, policy: str, saboteur: Saboteur, watchdog: float = 60.0, restarts: int = KILLS) -> dict[str, Any]:
    """Train on the cluster with a saboteur, assert the result of an undisturbed run, and return the summary."""
    options = EngineOptions(nodes.address, "spread", restarts, watchdog)
    cluster = Cluster(DEVICES, 2, apart=True)
    settings = RunOptions(engine=options)
    result = fragmenta.train(TINY, "CartPole-v1", policy, "ray", cluster=cluster, watcher=saboteur, options=settings)
    assert_same(undisturbed(policy), result.params, 0 if policy.startswith("single") else 1e-5)
    print(f"{policy}: mended after {', '.join(f'{seconds:.1f}' for seconds in saboteur.seconds) or 'nothing'} s")
    return result.summary


@pytest.mark.full
def test_fragments_on_three_nodes_end_with_the_parameters_of_one_process(nodes: Nodes) -> None:
    watcher = Saboteur(harmless)
    summary = run(nodes, "single_learner_coarse", watcher)
    assert "replaced" not in summary
    assert set(watcher.workers) == {"actor[0]", "actor[1]", "learner"}
    assert len({worker.node for worker in watcher.workers.values()}) == 3
    assert len({worker.pid for worker in watcher.workers.values()}) == 3


@pytest.mark.full
@pytest.mark.parametrize(
    "policy", [pytest.param(policy, marks=() if policy == POLICIES[0] else pytest.mark.full) for policy in POLICIES]
)
def test_killed_fragments_are_replaced_and_change_nothing(nodes: Nodes, policy: str) -> None:
    chance = random.Random(policy)

    def kill(workers: dict[str, ProcessLocation]) -> None:
        os.kill(chance.choice(sorted(workers.values(), key=lambda worker: worker.worker)).pid, signal.SIGKILL)

    saboteur = Saboteur(kill, *(chance.randrange(1, ITERATIONS // 2) for _ in range(KILLS)))
    assert run(nodes, policy, saboteur)["replaced"] == KILLS


@pytest.mark.full
def test_a_fragment_whose_node_dies_is_replaced_on_another(nodes: Nodes) -> None:
    lost: list[ProcessLocation] = []

    def kill(workers: dict[str, ProcessLocation]) -> None:
        lost.append(next(worker for worker in workers.values() if worker.node != nodes.head))
        nodes.lose(lost[0].node)

    saboteur = Saboteur(kill, ITERATIONS // 4)
    try:
        summary = run(nodes, "single_learner_coarse", saboteur, restarts=3)
    finally:
        nodes.add()
    assert summary["replaced"]
    assert lost[0].worker in {worker.worker for worker in saboteur.replaced}
    assert lost[0].node not in {worker.node for worker in saboteur.replaced}


@pytest.mark.full
def test_a_stopped_fragment_is_named_by_the_watchdog_and_replaced(
    nodes: Nodes, capfd: pytest.CaptureFixture[str]
) -> None:
    def stop(workers: dict[str, ProcessLocation]) -> None:
        os.kill(workers["env[1]"].pid, signal.SIGSTOP)

    saboteur = Saboteur(stop, ITERATIONS // 4)
    assert run(nodes, "single_learner_fine", saboteur, watchdog=WATCHDOG)["replaced"] == 1
    output = capfd.readouterr().err
    pattern = r"fragmenta: env\[1\] has sent no heartbeat for (\d+) s; last activity: .*; replaced"
    match = re.search(pattern, output)
    assert match, output
    assert WATCHDOG - 1 <= int(match[1]) <= WATCHDOG + 3
    assert [worker.worker for worker in saboteur.replaced] == ["env[1]"]


def eventually(condition: Callable[[], Any], seconds: float) -> Any:
    """The value of `condition` as soon as it is true; fails if that takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    assert value, "did not happen in time"
    return value


@pytest.mark.full
def test_a_killed_command_leaves_nothing_on_the_cluster_and_can_be_resumed(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    flags = "--num-envs 4 --horizon 8 --hidden 8 --epochs 1 --minibatches 2 --total-steps 100000000"
    flags += f" --policy single_learner_coarse --replicas 2 --engine ray --address {nodes.address}"
    flags += f" --placement spread --checkpoint-every 1 --run-dir {run_dir}"
    command = [sys.executable, "-m", "fragmenta.cli.main", "train", "ppo", "CartPole-v1", *flags.split()]
    log = tmp_path / "said"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out) as process:
        eventually(lambda: len(list((run_dir / "checkpoints").glob("0*"))) >= 2, 120)
        process.kill()
    killed = time.monotonic()
    fragments = [int(pid) for pid in re.findall(r"^(?:actor|learner).*, process (\d+)$", log.read_text(), re.M)]
    assert len(fragments) == 3
    eventually(lambda: not any(is_alive(pid) for pid in fragments), 5)
    seconds = time.monotonic() - killed
    records = (run_dir / "metrics.jsonl").read_text().splitlines()
    steps = json.loads(records[-2])["steps"] + 640
    assert main(["resume", str(run_dir), "--engine", "local", "--total-steps", str(steps), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["total_steps"] >= steps
    print(f"the last fragment was gone after {seconds:.1f} s")


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
