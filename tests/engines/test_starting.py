"""Processes that are slow, or lost before training begins: healthy ones stay, lost ones are replaced once."""

import dataclasses
import json
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_cluster_faults import ITERATIONS, SMALL, WATCHDOG, Run, start_run, undisturbed

import fragmenta
from fragmenta import Cluster, EnvOptions, Fragment, Plan, RunOptions, make
from fragmenta.engines import EngineOptions, ProcessLocation, Setup
from fragmenta.engines.crew import Crew
from fragmenta.engines.dispatch import routes
from fragmenta.engines.ends import Ends
from fragmenta.worker.channels.exchange import PipeExchange
from helpers import assert_same, cpu_cluster, planned
from processes import apart, run_apart


def merged(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Two fragments to merge, and one with an unusual name."""
    return [
        Fragment("act", ("act",), ("cpu:0",)),
        Fragment("step", ("step",), ("cpu:0",)),
        Fragment("Läufer & Söhne " + "x" * 200, ("learn",), ("cpu:1",)),
    ]


def merged_plan() -> tuple[Plan, Cluster]:
    cluster = dataclasses.replace(cpu_cluster(2, 1), apart=True)
    plan = planned(SMALL, make("CartPole-v1"), merged, cluster, merge=True)
    assert plan.programs[0].fragment.name == "act+step"
    return plan, cluster


@pytest.mark.parametrize("shares_memory", [True, False])
def test_routes_of_fragments_of_any_name_are_opened(shares_memory: bool) -> None:
    exchange = PipeExchange("127.0.0.1", bytes(32))
    opened = [Ends(exchange).open(route, shares_memory)["name"] for route in routes(merged_plan()[0])]
    exchange.close()
    assert len(set(opened)) == len(opened) > 1


@pytest.mark.full
def test_fragments_of_any_name_are_connected_and_may_start_as_late_as_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fragmenta.engines.crew.STARTING_SECONDS", 0.1)  # less than any process needs
    plan, cluster = merged_plan()
    setup = Setup(plan, SMALL, make("CartPole-v1"), merged, cluster, deadline=60.0)
    actual, _ = run_apart(setup, "processes", ITERATIONS)
    assert_same(undisturbed(), actual, 1e-5)


@pytest.mark.full
def test_workers_that_wait_for_one_that_dies_at_startup_are_restarted_with_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run, killed, turn = start_run("single_learner_coarse"), threading.Event(), threading.Lock()
    before, welcome = set(psutil.Process().children()), Crew._welcome

    def kill_another(crew: Crew, *arrival: Any) -> None:
        with turn:
            welcome(crew, *arrival)
            if killed.is_set() or not crew.peers:
                return
            here = {peer.hello["pid"] for peer in crew.peers.values()}
            next(child for child in psutil.Process().children() if child not in before and child.pid not in here).kill()
            killed.set()

    monkeypatch.setattr(Crew, "_welcome", kill_another)
    assert len(list(run.reports(ITERATIONS))) == ITERATIONS
    assert_same(undisturbed(), run.state, 1e-5)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fragmenta: ")]
    assert len(lines) == 1, lines
    assert re.search(r"was killed by SIGKILL.*; replaced \(1 of \d\), resuming after 0 iterations", lines[0]), lines


@pytest.mark.full
def test_a_worker_that_waits_for_a_stuck_peer_is_not_considered_stuck(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    setup = apart(SMALL, make("CartPole-v1"), "single_learner_coarse", 1, EngineOptions(watchdog=WATCHDOG))
    run, ask, placed = Run(setup), Crew.ask, list[str]()
    note: Any = run.setup.placed

    def note_all(workers: Sequence[ProcessLocation]) -> None:
        note(workers)
        placed.extend(worker.worker for worker in workers)

    def stop_one(crew: Crew, details: Any, request: str, timeout: float) -> Any:
        if request == "connect" and placed == ["actor", "learner"]:
            run.send("learner", signal.SIGSTOP)
        return ask(crew, details, request, timeout)

    run.setup = dataclasses.replace(run.setup, placed=note_all)
    monkeypatch.setattr(Crew, "ask", stop_one)
    monkeypatch.setattr(Crew, "_shares_memory", lambda *_: False)  # as if they were on two machines
    assert len(list(run.reports(ITERATIONS))) == ITERATIONS
    assert placed == ["actor", "learner", "learner"]
    assert_same(undisturbed(), run.state, 1e-5)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fragmenta: ")]
    assert len(lines) == 1, lines
    assert re.match(r"fragmenta: learner has sent no heartbeat for \d+ s; .*; replaced \(1 of 3\)", lines[0]), lines


@pytest.mark.full
def test_a_worker_with_a_slow_environment_stays_when_another_is_lost(tmp_path: Path) -> None:
    marker = tmp_path / "slow"
    arguments = json.dumps({"fault": "pause_once", "at": 12, "marker": str(marker)})  # in the second iteration
    env = make("faulty_envs:Steady", EnvOptions(env_mode="serial", env_args=arguments))
    small = dataclasses.replace(SMALL, num_envs=1, minibatches=1)
    run, actors = Run(apart(small, env, "single_learner_coarse", 1)), list[int]()

    def lose_the_learner() -> None:
        while not marker.exists():
            time.sleep(0.01)
        actors.append(run.pids["actor"])
        run.send("learner", signal.SIGKILL)

    threading.Thread(target=lose_the_learner, daemon=True).start()
    assert len(list(run.reports(4))) == 4
    assert actors == [run.pids["actor"]]


@pytest.mark.full
def test_an_environment_may_block_its_process_for_as_long_as_a_step_may_take() -> None:
    result = fragmenta.train(
        dataclasses.replace(SMALL, num_envs=1, minibatches=1),
        "faulty_envs:Steady",
        policy="single_learner_coarse",
        engine="processes",
        cluster=Cluster(("cpu:0", "cpu:1"), 1),
        total_steps=SMALL.horizon,
        options=RunOptions(
            EnvOptions(env_mode="serial", env_args=json.dumps({"fault": "hold"})),
            EngineOptions(restarts=0, watchdog=WATCHDOG),
        ),
    )
    assert len(result.metrics) == 1
