"""Actors, shards of a replay and learners that are killed: the run goes on to its end, with the same result unless it
is asynchronous."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from test_cluster_faults import REPLAY

from fragmenta import make
from fragmenta.engines import EngineOptions
from helpers import assert_same, run_plan
from processes import Run, apart
from ray_nodes import Nodes

ITERATIONS, LONGER = 400, 2_000
VICTIMS = ("actor[1]", "replay[0]", "learner") * (3 if os.environ.get("CHAOS") else 1)
"""Killed in turn."""
LINE = r"^fragmenta: (\S+) (.*); replaced \((\d+) of \d+\), resuming after (\d+) iterations$"
ENGINES = ["processes", "ray"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Callable[[], Nodes]]:
    """The Ray nodes, which are started when they are first asked for."""
    started: list[Nodes] = []

    def start() -> Nodes:
        if not started:
            started.append(Nodes())
        return started[0]

    yield start
    for nodes in started:
        nodes.close()


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what resumes does not begin again."""
    monkeypatch.setattr("fragmenta.engines.snapshot.SNAPSHOT_SECONDS", 0.2)
    monkeypatch.setattr("fragmenta.engines.cluster.SNAPSHOT_SECONDS", 0.2)
    monkeypatch.setattr("fragmenta.engines.snapshot.SNAPSHOT_SHARE", 0.5)


def start_run(policy: str, engine: str, nodes: Callable[[], Nodes]) -> Run:
    options = EngineOptions(restarts=len(VICTIMS))
    if engine == "ray":
        options = EngineOptions(nodes().address, "spread", len(VICTIMS))
    return Run(apart(REPLAY, make("CartPole-v1"), policy, 2, options), engine)


def kill_in_turn(run: Run, iterations: int) -> list[int]:
    """Run, and kill the victims at even distances, each once the one before was replaced; the reported iterations."""
    reported, to_kill = [], list(VICTIMS)
    last, since = "", 0.0
    for report in run.reports(iterations):
        reported.append(report.iteration)
        if last and run.placed_at[last] < since:
            time.sleep(0.05)  # those that do not wait for it must not be done before it is replaced
        elif to_kill and len(reported) > (1 + len(VICTIMS) - len(to_kill)) * iterations // (len(VICTIMS) + 2):
            last, since = to_kill.pop(0), time.monotonic()
            run.send(last, signal.SIGKILL)
    assert not to_kill, f"the run was over before {to_kill} were killed"
    return reported


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_actors_shards_and_learners_do_not_change_the_result(
    engine: str, nodes: Callable[[], Nodes], capfd: pytest.CaptureFixture[str]
) -> None:
    run = start_run("replay", engine, nodes)
    assert kill_in_turn(run, ITERATIONS) == list(range(ITERATIONS)), "every iteration is reported once"
    lines = re.findall(LINE, capfd.readouterr().err, re.MULTILINE)
    assert [line[0] for line in lines] == list(VICTIMS)
    assert all(0 < int(line[3]) < ITERATIONS for line in lines), "in mid run"
    assert run.replaced == len(VICTIMS)
    assert_same(run_plan(run.setup.plan, REPLAY, run.setup.env, ITERATIONS)[0], run.state, 0)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_an_asynchronous_run_goes_on_although_actors_shards_and_learners_are_killed(
    engine: str, nodes: Callable[[], Nodes], capfd: pytest.CaptureFixture[str]
) -> None:
    run = start_run("replay_async", engine, nodes)
    assert kill_in_turn(run, LONGER) == list(range(LONGER)), "every iteration is reported once"
    lines = re.findall(LINE, capfd.readouterr().err, re.MULTILINE)
    assert [line[0] for line in lines] == list(VICTIMS)
    assert run.replaced == len(VICTIMS)
    assert int(run.state.learner.updates) > 0
    assert int(run.state.replay.filled) > 0
