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
REFILLED = r"^fragmenta: the replay of (.*) \(too large for snapshots\) was lost and fills anew$"
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


def check_messages(output: str, reached: int, is_large: bool) -> None:
    """Every loss is one line, and of a large replay only the part of a lost shard."""
    lines = re.findall(LINE, output, re.MULTILINE)
    assert [line[0] for line in lines] == list(VICTIMS)
    assert all(int(line[3]) < reached for line in lines)
    refilled = [victim for victim in VICTIMS if victim.startswith("replay")] if is_large else []
    assert re.findall(REFILLED, output, re.MULTILINE) == refilled


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_actors_shards_and_learners_do_not_change_the_result(
    engine: str, nodes: Callable[[], Nodes], capfd: pytest.CaptureFixture[str]
) -> None:
    run = start_run("replay", engine, nodes)
    assert kill_in_turn(run, ITERATIONS) == list(range(ITERATIONS)), "every iteration is reported once"
    output = capfd.readouterr().err
    check_messages(output, ITERATIONS, is_large=False)
    assert all(int(line[3]) for line in re.findall(LINE, output, re.MULTILINE)), "in mid run"
    assert run.replaced == len(VICTIMS)
    assert_same(run_plan(run.setup.plan, REPLAY, run.setup.env, ITERATIONS)[0], run.state, 0)


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("policy", "is_large"), [("replay_async", False), ("replay_async", True), ("replay", True)])
def test_a_run_goes_on_although_actors_shards_and_learners_are_killed(
    policy: str,
    is_large: bool,
    engine: str,
    nodes: Callable[[], Nodes],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also with a replay that stays in place: then only what a lost shard had is lost."""
    if is_large:
        monkeypatch.setattr("fragmenta.engines.in_place.IN_PLACE_BYTES", 0)
    run, iterations = start_run(policy, engine, nodes), LONGER if policy == "replay_async" else ITERATIONS
    assert kill_in_turn(run, iterations) == list(range(iterations)), "every iteration is reported once"
    check_messages(capfd.readouterr().err, iterations, is_large)
    assert run.replaced == len(VICTIMS)
    assert int(run.state.learner.updates) > 0
    assert min(run.state.replay.filled) > 0


@pytest.mark.full
def test_a_learner_killed_while_an_actor_is_replaced_costs_no_other_actor(
    nodes: Callable[[], Nodes], capfd: pytest.CaptureFixture[str]
) -> None:
    """The replacement fails because it cannot connect to the learner; the recovery of the learner includes it."""
    run = start_run("replay_async", "processes", nodes)
    for report in run.reports(LONGER):
        if report.iteration == 100:
            run.send("actor[1]", signal.SIGKILL)
        elif report.iteration == 110:
            run.send("learner", signal.SIGKILL)
    output = capfd.readouterr().err
    assert [line[0] for line in re.findall(LINE, output, re.MULTILINE)] == ["actor[1]", "learner"], output
    assert "continues without" not in output
    assert run.replaced == 2
