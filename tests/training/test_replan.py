"""A run that is slower than predicted changes its plan while it trains, and ends like one that nothing changed."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import fragmenta
from fragmenta import DQN, PPO, EnvOptions, RunOptions, SaveOptions
from fragmenta.profiling.timings import Timings
from fragmenta.runs.history import read_history
from fragmenta.runs.timeline_files import read_timings
from fragmenta.training.log import RunLog
from fragmenta.training.replanning import SpeedCheck
from fragmenta.training.stopping import Stop, StoppedError
from helpers import assert_same
from replanning import ASKED_AFTER, Place, Places, Remarks, replanned

ALGORITHM = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=2, minibatches=2, normalize_observations=True)
REPLAY = DQN(
    num_envs=4,
    horizon=4,
    batch_size=16,
    buffer_size=256,
    learning_starts=32,
    updates=2,
    hidden=(8,),
    prioritized=True,
)
STEPS = 32
FUSED, COARSE = Place("fused"), Place("single_learner_coarse", 2)
FAR = Place("single_learner_coarse", 2, "processes")


def trained(algorithm: Any, env: str, first: Place, iterations: int, **settings: Any) -> fragmenta.Result:
    steps = iterations * algorithm.steps_per_iteration
    placed = {"policy": first.policy, "cluster": first.cluster, "engine": first.engine}
    options = settings.pop("options", RunOptions(merge=False, sinks=()))
    return fragmenta.train(algorithm, env, **placed, total_steps=steps, progress=False, options=options, **settings)


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def config(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())


WAYS = {
    "brief": (FUSED, COARSE, Place("fused", 2)),
    "policies": (Place("multi_learner", 2), Place("environments", 2), FUSED, Place("central", 2)),
    "processes": (FUSED, COARSE, Place("fused", 2), FAR, FUSED),
    "ray": (COARSE, Place("single_learner_fine", 2, "ray"), FUSED),
}


@pytest.mark.brief("brief")
@pytest.mark.parametrize("way", WAYS)
def test_the_result_is_that_of_a_run_that_nothing_changed(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = WAYS[way]
    iterations = ASKED_AFTER * (len(others) + 1) + 1
    expected = trained(ALGORITHM, "CartPole-v1", first, iterations)
    replan, watcher, run = Places(*others), Remarks(), tmp_path / "run"
    replanned(monkeypatch, replan)
    result = trained(ALGORITHM, "CartPole-v1", first, iterations, run_dir=run, watcher=watcher)
    assert_same(expected.state, result.state, 1e-5)
    # Nothing is lost or counted twice.
    assert [record["iteration"] for record in records(run)] == list(range(iterations))
    assert [record["steps"] for record in records(run)] == [STEPS * (i + 1) for i in range(iterations)]
    for record, whole in zip(records(run), expected.metrics, strict=True):
        assert (record["episodes"], record["return_mean"]) == (whole["episodes"], whole["return_mean"])
    assert result.summary["return_mean"] == expected.summary["return_mean"]
    # The files have the newest plan, and when it changed.
    last = others[-1]
    for facts in (config(run), result.summary):
        assert (facts["policy"], facts["engine"], facts["replicas"]) == (last.policy, last.engine, last.replicas)
    changes = [event for event in read_history(run) if event["event"] == "changed"]
    assert [event["iteration"] for event in changes] == [ASKED_AFTER * (i + 1) for i in range(len(others))]
    written = json.loads((run / "summary.json").read_text())["changes"]
    assert written == [{name: event[name] for name in event if name not in ("event", "time")} for event in changes]
    assert len(watcher.lines) == 2 * len(others) + 1, "a line about the speed per plan, and one about every change"


@pytest.mark.brief("large")
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_a_replay_comes_along(large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("fragmenta.engines.in_place.IN_PLACE_BYTES", 0)
        monkeypatch.setattr("fragmenta.engines.holding.LARGE", 0)  # the next engine takes over what lies on its device
    others = (COARSE, FUSED) if large else (COARSE, Place("replay", 2), FUSED)
    iterations = ASKED_AFTER * (len(others) + 1) + 2
    expected = trained(REPLAY, "CartPole-v1", FUSED, iterations)
    replanned(monkeypatch, Places(*others))
    result = trained(REPLAY, "CartPole-v1", FUSED, iterations, run_dir=tmp_path / "run")
    assert len(result.summary["changes"]) == len(others)
    assert_same(expected.params, result.params, 1e-5)
    assert (result.state.replay.filled is None) == large
    if not large:
        assert_same(expected.state.replay, result.state.replay, 1e-5)


@pytest.mark.full
@pytest.mark.parametrize("save", [False, True])
def test_a_large_replay_comes_along_to_other_processes(
    save: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fragmenta.engines.in_place.IN_PLACE_BYTES", 0)
    iterations = ASKED_AFTER * 3 + 2
    expected = trained(REPLAY, "CartPole-v1", FUSED, iterations)
    replanned(monkeypatch, Places(Place("replay", 2, "processes"), COARSE))
    options = RunOptions(merge=False, sinks=(), saving=SaveOptions(save_replay=save))
    result = trained(REPLAY, "CartPole-v1", FUSED, iterations, run_dir=tmp_path / "run", options=options)
    assert len(result.summary["changes"]) == 2
    assert_same(expected.params, result.params, 1e-5)


def test_a_large_replay_for_which_there_is_no_room_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fragmenta.engines.in_place.IN_PLACE_BYTES", 0)
    monkeypatch.setattr("fragmenta.training.replanning.free_memory", lambda: 10**4)
    line = stays(monkeypatch, REPLAY, "CartPole-v1", FUSED, COARSE)
    assert line.startswith("the plan stays: to move a replay of 0.0 GB takes 0.0 GB of memory, of which 0.0 GB are")


def stays(
    monkeypatch: pytest.MonkeyPatch, algorithm: Any, env: str, first: Place, second: Place, **settings: Any
) -> str:
    """The line that says why the plan stays; the result is that of a run that was not to change."""
    iterations = ASKED_AFTER + 2
    expected = trained(algorithm, env, first, iterations, **settings)
    watcher, replan = Remarks(), Places(second, second)
    replanned(monkeypatch, replan)
    result = trained(algorithm, env, first, iterations, watcher=watcher, **settings)
    assert "changes" not in result.summary
    assert_same(expected.params, result.params, 0)
    assert len(replan.measured) == 1, "it asks no more"
    _, line = watcher.lines
    return line


LATE = fragmenta.IMPALA(num_envs=4, horizon=8, hidden=(8,))
HOST = "gymnasium:CartPole-v1"
ONE, TWO, MULTI = Place("single_learner_coarse"), Place("single_learner_coarse", 2), Place("multi_learner", 2)


@pytest.mark.brief("serial")
@pytest.mark.parametrize("mode", ["serial", "threads", "processes"])
def test_episodes_on_the_host_go_on(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions(EnvOptions(env_mode=mode, env_workers=2), merge=False)
    others = (TWO,) if mode == "serial" else (TWO, MULTI, ONE)
    iterations = ASKED_AFTER * (len(others) + 1) + 4
    expected = trained(ALGORITHM, HOST, ONE, iterations, options=options)
    replanned(monkeypatch, Places(*others))
    result = trained(ALGORITHM, HOST, ONE, iterations, options=options)
    assert len(result.summary["changes"]) == len(others)
    assert_same(expected.state, result.state, 1e-5)
    assert result.summary["return_mean"] == expected.summary["return_mean"]


def test_episodes_on_the_host_stay_in_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    line = stays(monkeypatch, ALGORITHM, HOST, ONE, Place("single_learner_coarse", 2, "processes"))
    assert line == (
        "the plan stays: the episodes of gymnasium:CartPole-v1 cannot move from engine 'local' to engine 'processes'"
    )


def test_episodes_on_the_host_move_from_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    first, iterations = Place("single_learner_coarse", 2, "processes"), 2 * ASKED_AFTER + 5
    expected = trained(ALGORITHM, HOST, first, iterations)
    replanned(monkeypatch, Places(ONE, MULTI))
    result = trained(ALGORITHM, HOST, first, iterations)
    assert [change.get("engine") for change in result.summary["changes"]] == [["processes", "local"], None]
    assert_same(expected.state, result.state, 1e-5)
    assert result.summary["return_mean"] == expected.summary["return_mean"]


def test_episodes_that_cannot_be_pickled_stay_in_their_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fragmenta_host.pool.can_be_pickled", lambda _: False)
    line = stays(monkeypatch, ALGORITHM, HOST, Place("single_learner_coarse", 2, "processes"), ONE)
    assert line.endswith(f"the episodes of {HOST} cannot move from engine 'processes' to engine 'local'")


def test_values_in_flight_cannot_move(monkeypatch: pytest.MonkeyPatch) -> None:
    line = stays(monkeypatch, LATE, "CartPole-v1", TWO, Place("single_learner_coarse", 2, lag=1))
    assert line == "the plan stays: distribution policy single_learner_coarse would train with older values"


@pytest.mark.full
def test_with_values_in_flight_it_asks_for_no_better_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, replan = Remarks(), Places(FUSED)
    replanned(monkeypatch, replan)
    trained(LATE, "CartPole-v1", Place("single_learner_coarse", 2, lag=1), ASKED_AFTER + 2, watcher=watcher)
    assert not replan.measured, "it is not asked"
    assert len(watcher.lines) == 1, "but it says that it is slower than predicted"


def test_an_engine_that_does_not_start_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise OSError("no room\nfor processes")

    monkeypatch.setattr("fragmenta.training.replanning.start_engine", fails)
    line = stays(monkeypatch, ALGORITHM, "CartPole-v1", FUSED, FAR)
    assert line == "the plan stays, because the engine of another one did not start: no room for processes"


@pytest.mark.brief("after")
@pytest.mark.parametrize("when", ["after", "while", "in processes"])
def test_a_run_that_is_stopped_after_a_change_resumes_under_the_newest_plan(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterations, run = 10, tmp_path / "run"
    expected = trained(ALGORITHM, "CartPole-v1", FUSED, iterations)
    interrupted = (lambda: os.kill(os.getpid(), signal.SIGINT)) if when == "while" else (lambda: None)
    watcher = Remarks(-1 if when == "while" else ASKED_AFTER + 2)
    place = FAR if when == "in processes" else COARSE
    with monkeypatch.context() as patches:
        replanned(patches, Places(place, before=interrupted))
        with pytest.raises(StoppedError, match=r"SIGINT: saved after .* continue with: fragmenta resume"):
            trained(ALGORITHM, "CartPole-v1", FUSED, iterations, run_dir=run, watcher=watcher)
    done = ASKED_AFTER if when == "while" else ASKED_AFTER + 2
    assert [record["iteration"] for record in records(run)] == list(range(done))
    assert sorted(path.name for path in (run / "checkpoints").glob("0*"))[-1] == f"{done:010}"
    assert (config(run)["policy"], config(run)["engine"]) == (place.policy, place.engine)
    assert "single_learner_coarse" not in (run / "graph.mmd").read_text()
    resumed = fragmenta.resume(run, progress=False)
    assert resumed.summary["policy"] == place.policy
    assert [event["event"] for event in read_history(run)] == ["started", "changed", "stopped", "resumed", "done"]
    assert [record["iteration"] for record in records(run)] == list(range(iterations))
    assert_same(expected.params, resumed.params, 1e-5)


@pytest.mark.full
def test_checkpoints_evaluations_callbacks_and_the_timeline_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counts:
        def __init__(self) -> None:
            self.iterations: list[int] = []
            self.evaluations: list[int] = []
            self.checkpoints: list[int] = []

        def on_iteration(self, moment: fragmenta.Moment) -> None:
            self.iterations.append(moment.progress.iteration)
            moment.add(seen=len(self.iterations))

        def on_evaluation(self, moment: fragmenta.Moment) -> None:
            assert moment.evaluation is not None
            self.evaluations.append(moment.evaluation["iteration"])

        def on_checkpoint(self, moment: fragmenta.Moment) -> None:
            assert moment.checkpoint is not None
            self.checkpoints.append(int(moment.checkpoint.name))

    counts, run, iterations = Counts(), tmp_path / "run", 20
    evaluation = fragmenta.EvaluationOptions(eval_every=5, eval_episodes=2)
    saving = SaveOptions(checkpoint_every=2, keep_best=False)
    options = RunOptions(merge=False, saving=saving, evaluation=evaluation, sinks=(), timeline=True)
    replanned(monkeypatch, Places(COARSE))
    result = trained(ALGORITHM, "CartPole-v1", FUSED, iterations, run_dir=run, options=options, callbacks=[counts])
    assert counts.iterations == [record["seen"] for record in records(run)] == list(range(1, iterations + 1))
    assert set(counts.evaluations) <= {5, 10, 15, 20}
    assert counts.evaluations[-1] == iterations
    assert counts.checkpoints[-1] == iterations
    assert len(result.summary["changes"]) == 1
    timings = read_timings(run)
    assert isinstance(timings, Timings)
    assert {worker.fragment for worker in timings.workers} == {"actor", "learner"}, "of the newest plan"


class Recorded:
    """A log of stretches of a quarter of a second, to which steps per second are added."""

    iteration, iterations, steps = 0, 100, 0

    def steps_since(self, steps: int) -> int:
        return (self.steps - steps) // 4


@pytest.mark.parametrize(
    ("rates", "lines", "questions"),
    [
        ([1] * 8 + [100] * 20, [], 0),  # compiling, and the first iterations
        ([100] * 40 + [75] * 40, [], 0),
        ([100] * 40 + [10] * 4 + [100] * 40, [], 0),  # for less than two seconds
        ([100] * 400 + [50] * 16, ["measured 50 steps/s, 50% below the predicted 100"], 3),
        ([100] * 8 + [150] * 16, ["measured 150 steps/s, 50% above the predicted 100"], 0),
        ([60] * 40 + [150] * 40, ["measured 60 steps/s, 40% below the predicted 100"], 8),
    ],
)
def test_the_speed_of_the_latest_seconds_is_compared(rates: list[int], lines: list[str], questions: int) -> None:
    watcher, asked, log = Remarks(), [], Recorded()
    planned = SimpleNamespace(predicted=100.0)
    replan = lambda run, measured: asked.append(measured)  # noqa: E731
    plan, stop = SimpleNamespace(lags=False), Stop()
    run: Any = SimpleNamespace(planned=planned, replan=replan, watcher=watcher, plan=plan, stop=stop)
    speed = SpeedCheck(run)
    for rate in rates:
        log.steps += rate
        assert speed.better_plan(cast(RunLog, log), 0.25) is None
    assert watcher.lines == lines
    assert len(asked) == questions
