"""Processes that are killed, get stuck or fail: the run continues with the same result, or ends and says why."""

import dataclasses
import json
import os
import random
import re
import signal
import threading
import time
from typing import Any

import psutil
import pytest
from test_faults import Fragile
from test_faults import apart as actors_and_learner

import fragmenta
from fragmenta import DQN, IMPALA, PPO, Cluster, ConfigError, EnvOptions, RunOptions, make
from fragmenta.engines import EngineOptions
from fragmenta.engines.errors import RemoteError
from fragmenta_core.faults import EnvironmentFaultError
from helpers import assert_same, plain
from processes import Run, apart

SMALL = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=50_000)
REPLAY = DQN(
    num_envs=4,
    horizon=4,
    hidden=(8,),
    batch_size=16,
    buffer_size=256,
    learning_starts=32,
    prioritized=True,
    ladder=True,
)
ITERATIONS = 40
KINDS = {
    "single_learner_coarse": ("actor[0]", "learner"),
    "single_learner_fine": ("env[1]", "learner"),
    "central": ("worker[1]", "server"),
    "multi_learner": ("learner[0]", "learner[1]"),
    "fused": ("all[1]", "all[0]"),
}
"""The fragments that are killed, by distribution policy."""
KILLS = 4 if os.environ.get("CHAOS") else 2
"""For each distribution policy; test_cluster_replay.py has those with a replay."""
WATCHDOG = 4.0


def undisturbed() -> Any:
    return plain(SMALL, make("CartPole-v1"), ITERATIONS)[0]


def start_run(policy: str, restarts: int = KILLS, watchdog: float = 15.0) -> Run:
    options = EngineOptions(restarts=restarts, watchdog=watchdog)
    return Run(apart(SMALL, make("CartPole-v1"), policy, 2, options))


@pytest.mark.full
@pytest.mark.parametrize(
    "policy", [pytest.param(name, marks=() if name == "central" else pytest.mark.full) for name in KINDS]
)
def test_killed_workers_do_not_change_the_result(policy: str, capfd: pytest.CaptureFixture[str]) -> None:
    victims = KINDS[policy]
    run = start_run(policy)
    moments = sorted(random.sample(range(ITERATIONS), KILLS))
    reported = []
    for report in run.reports(ITERATIONS):
        if report.iteration in moments:
            run.send(victims[moments.index(report.iteration) % len(victims)], signal.SIGKILL)
        reported.append(report.iteration)
    assert reported == list(range(ITERATIONS)), f"every iteration is reported once; killed after {moments}"
    assert_same(undisturbed(), run.state, 1e-5)
    output = capfd.readouterr().err
    messages = [line for line in output.splitlines() if line.startswith("fragmenta: ")]
    assert len(messages) == KILLS, output
    for line in messages:
        assert re.search(r"was killed by SIGKILL; replaced \(\d of \d+\), resuming after \d+ iterations", line), line


LEARNS = DQN(num_envs=4, horizon=4, hidden=(8,), buffer_size=4_000, batch_size=16, learning_starts=32, updates=2)


@pytest.mark.full
@pytest.mark.parametrize(("limit", "killed"), [(1 << 28, "learner"), (0, "actor"), (0, "learner")])
def test_a_replay_is_restored_exactly_or_kept_in_its_process_or_fills_anew(
    limit: int, killed: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fragmenta.engines.in_place.IN_PLACE_BYTES", limit)
    monkeypatch.setattr("fragmenta.engines.snapshot.SNAPSHOT_SECONDS", 0.2)
    run = Run(apart(LEARNS, make("CartPole-v1"), "single_learner_coarse", 1, EngineOptions()))
    for report in run.reports(ITERATIONS):
        if report.iteration == 30:
            run.send(killed, signal.SIGKILL)
    assert run.state.iteration == ITERATIONS
    refilled = "the replay of learner (too large for snapshots) was lost and fills anew" in capfd.readouterr().err
    assert refilled == (limit == 0 and killed == "learner")
    steps = int(min(run.state.replay.filled))
    if limit:
        assert_same(plain(LEARNS, make("CartPole-v1"), ITERATIONS)[0], run.state, 1e-5)
    else:
        assert steps < 4 * ITERATIONS if refilled else steps >= 4 * ITERATIONS


@pytest.mark.full
def test_a_stuck_worker_is_named_with_its_last_activity_and_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    run = start_run("single_learner_coarse", watchdog=WATCHDOG)
    for report in run.reports(ITERATIONS):
        if report.iteration == 20:
            time.sleep(1.5)  # its activity is polled once a second
            run.send("actor[1]", signal.SIGSTOP)
    assert_same(undisturbed(), run.state, 1e-5)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fragmenta: ")]
    assert len(lines) == 1, lines
    match = re.match(
        r"fragmenta: actor\[1\] has sent no heartbeat for (\d+) s; last activity: "
        r"(computes|waits for|sends) .*; replaced \(1 of \d\), resuming after \d+ iterations",
        lines[0],
    )
    assert match, lines
    assert int(match[1]) <= WATCHDOG + 2


@pytest.mark.full
def test_a_worker_that_dies_while_starting_is_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    run, killed = start_run("single_learner_coarse"), threading.Event()
    before = set(psutil.Process().children())

    def kill_the_first() -> None:
        while not (new := [child for child in psutil.Process().children() if child not in before]):
            time.sleep(0.01)
        new[0].kill()
        killed.set()

    threading.Thread(target=kill_the_first, daemon=True).start()
    assert len(list(run.reports(ITERATIONS))) == ITERATIONS
    assert killed.is_set()
    assert_same(undisturbed(), run.state, 1e-5)
    line = r"fragmenta: .* was killed by SIGKILL before it was ready; replaced \(1 of \d\), resuming after 0 iterations"
    assert re.search(line, capfd.readouterr().err)


@pytest.mark.full
def test_without_a_budget_the_loss_ends_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    run = start_run("single_learner_coarse", restarts=0)

    def lose_the_learner() -> None:
        for report in run.reports(100_000):
            if report.iteration == 5:
                run.send("learner", signal.SIGKILL)

    with pytest.raises(RemoteError, match=r"^learner was killed by SIGKILL$"):
        lose_the_learner()
    assert not [pid for pid in run.pids.values() if os.path.exists(f"/proc/{pid}")]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.full
def test_an_error_in_a_process_is_raised_with_its_own_traceback_once_the_budget_is_spent(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RemoteError, match=r"in actor\[\d\]: .*the sensor is broken") as caught:
        fragmenta.train(
            Fragile(num_envs=4),
            "CartPole-v1",
            policy=actors_and_learner,
            engine="processes",
            cluster=Cluster(("cpu:0", "cpu:1", "cpu:2")),
            total_steps=4_000,
            options=RunOptions(engine=EngineOptions(restarts=1)),
        )
    assert "BrokenSensorError" in caught.value.trace
    assert "in read_sensor" in caught.value.trace, "the user's own line must be in the traceback"
    output = capfd.readouterr().err
    assert output.count("in read_sensor") >= 1, "the first time it is shown, and replaced"
    assert len(re.findall(r"^fragmenta: actor\[\d\]: .*; replaced \(1 of 1\)", output, re.MULTILINE)) == 1, output


@pytest.mark.full
@pytest.mark.parametrize("fault", ["raise", pytest.param("reset", marks=pytest.mark.full)])
def test_an_environment_that_fails_ends_the_run_with_its_own_line(
    fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    line = {"raise": r"step 5: step raised ValueError: the motor is stuck", "reset": r"step 0: reset raised .*reset"}
    with pytest.raises(EnvironmentFaultError, match=rf"^environment \d of faulty_envs:Steady, {line[fault]}") as caught:
        fragmenta.train(
            dataclasses.replace(SMALL, num_envs=2),
            "faulty_envs:Steady",
            policy="single_learner_coarse",
            engine="processes",
            cluster=Cluster(("cpu:0", "cpu:1"), 2),
            options=RunOptions(env=EnvOptions(env_args=json.dumps({"fault": fault}))),
        )
    assert "\n" not in str(caught.value)
    assert "in _raise" in caught.value.trace or fault == "reset"
    assert "fragmenta/engines" not in caught.value.trace, "the traceback is the environment's, not ours"
    assert "replaced" not in capfd.readouterr().err, "environments have a budget of their own"


def hang(engine: str = "processes", restarts: int = 0, deadline: float = 60.0, **faults: Any) -> None:
    """Train with environments that hang, of which one is noticed after three seconds."""
    env_args = json.dumps({"fault": "hang", **faults})
    fragmenta.train(
        dataclasses.replace(SMALL, num_envs=2),
        "faulty_envs:Steady",
        policy="single_learner_coarse",
        engine=engine,
        cluster=Cluster(("cpu:0", "cpu:1"), 2),
        options=RunOptions(
            env=EnvOptions(env_args=env_args, env_timeout=3.0, env_restarts=restarts), deadline=deadline
        ),
    )


@pytest.mark.full
@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.full)])
def test_an_environment_that_hangs_ends_the_run_with_its_own_line(
    engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    line = r"^environment \d of faulty_envs:Steady, step 5: did not finish within 3 s; use --env-mode processes --env"
    with pytest.raises(EnvironmentFaultError, match=line) as caught:
        hang(engine)
    assert caught.value.trace == ""
    assert "fragmenta: " not in capfd.readouterr().err, "it is not replaced, and the guard has nothing to add"


@pytest.mark.full
@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.full)])
def test_an_environment_that_hangs_and_holds_the_interpreter_ends_the_run(
    engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RemoteError, match=r"^actor\[\d\] was ended because an environment did not finish its step"):
        hang(engine, fault="seize")
    lines = {line.partition(": ")[2] for line in capfd.readouterr().err.splitlines() if "fragmenta: " in line}
    late = "of faulty_envs:Steady has not finished its step within 3 s and holds the interpreter, so its process ends"
    assert lines, "which environment it is, by the guard of its process"
    assert all(late in line for line in lines), "it is not replaced"


@pytest.mark.full
def test_an_environment_that_hangs_is_restarted_within_its_budget(capfd: pytest.CaptureFixture[str]) -> None:
    line = r"^environment \d of faulty_envs:Steady, step \d+: did not finish within 3 s, so .*\(1 restarts used\)"
    with pytest.raises(EnvironmentFaultError, match=line):
        hang(restarts=1)
    lines = [line for line in capfd.readouterr().err.splitlines() if "fragmenta: " in line]
    assert 1 <= len(lines) <= 2, "each of the two processes restarts one at most, and none is replaced"
    assert all(line.endswith("restarted (1 of 1)") for line in lines)


@pytest.mark.full
def test_an_environment_that_hangs_is_blamed_although_others_give_up_waiting_first() -> None:
    with pytest.raises(EnvironmentFaultError, match=r"^environment \d of .*, step 5: did not finish within 3 s"):
        hang(deadline=1.0)


@pytest.mark.full
def test_restarted_environments_are_counted() -> None:
    result = fragmenta.train(
        dataclasses.replace(SMALL, num_envs=2),
        "faulty_envs:Steady",
        policy="single_learner_coarse",
        engine="processes",
        cluster=Cluster(("cpu:0", "cpu:1"), 2),
        total_steps=160,
        options=RunOptions(env=EnvOptions(env_args=json.dumps({"fault": "raise", "at": 20}), env_restarts=50)),
    )
    assert result.summary["env_restarts"] >= 2


@pytest.mark.full
def test_a_mistake_that_only_another_process_can_detect_is_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^cannot load distribution policy 'only_here:policy': No module named"
    ) as caught:
        fragmenta.train(SMALL, "CartPole-v1", policy="only_here:policy", engine="processes")
    assert "\n" not in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize(
    ("env", "policy", "victim"),
    [
        ("CartPole-v1", "single_learner_async", "actor[0]"),
        ("gymnasium:CartPole-v1", "single_learner_async", "actor[0]"),
        ("CartPole-v1", "replay_async", "actor[0]"),
        ("CartPole-v1", "replay_async", "replay[0]"),
    ],
)
def test_a_free_running_worker_is_replaced_while_training_continues(env: str, policy: str, victim: str) -> None:
    algorithm = REPLAY if policy == "replay_async" else IMPALA(num_envs=4, horizon=8, hidden=(8,))
    run = Run(apart(algorithm, make(env), policy, 2, EngineOptions()))
    feeder = run.setup.plan.feeder
    killed = back = 0.0
    arrivals: list[tuple[float, str | None]] = []
    for report in run.reports(1_000_000):
        now = time.monotonic()
        arrivals.append((now, report.source))
        if not killed and {source for _, source in arrivals} == {f"{feeder}[0]", f"{feeder}[1]"}:
            killed = now
            run.send(victim, signal.SIGKILL)
        replaced = run.placed_at[victim]
        if killed and replaced > killed and now > replaced and report.source == f"{feeder}[0]":
            back = now
            break
        assert now < (killed or now) + 90, "the new one does not deliver"
    assert back
    meanwhile = [at for at, source in arrivals if source == f"{feeder}[1]" and killed < at < replaced]
    assert meanwhile
    assert meanwhile[-1] > replaced - 1, "training waited for the new one"
