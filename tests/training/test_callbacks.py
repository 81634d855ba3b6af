"""Callbacks: they see every iteration as it was, add metrics, and end a run cleanly."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fragmenta
from fragmenta import PPO, ConfigError, EvaluationOptions, Moment, RunOptions, SaveOptions
from fragmenta.cli.main import main
from fragmenta.runs.run_directory import sha256
from helpers import assert_same

TINY = PPO(num_envs=4, horizon=8, hidden=(8,), minibatches=2, epochs=1, total_steps=10 * 32)
EASY = {"num_envs": 8, "horizon": 32, "minibatches": 2, "epochs": 1, "total_steps": 200 * 256}


class Watching:
    """Counts what it is called for, and fingerprints the parameters of each iteration."""

    def __init__(self) -> None:
        self.iterations: list[int] = []
        self.fingerprints: list[str] = []
        self.evaluations: list[dict[str, Any]] = []
        self.checkpoints: list[Path] = []

    def on_iteration(self, moment: Moment) -> None:
        self.iterations.append(moment.progress.iteration)
        self.fingerprints.append(sha256(moment.params))
        moment.add(double=2 * moment.progress.iteration, weight=np.float32(0.5))

    def on_evaluation(self, moment: Moment) -> None:
        assert moment.evaluation is not None
        self.evaluations.append(moment.evaluation)

    def on_checkpoint(self, moment: Moment) -> None:
        assert moment.checkpoint is not None
        assert (moment.checkpoint / "manifest.json").exists()
        self.checkpoints.append(moment.checkpoint)


@pytest.mark.full
@pytest.mark.brief("fused")
@pytest.mark.parametrize("policy", ["fused", "single_learner_coarse"])
def test_they_see_every_iteration_and_change_nothing(policy: str, tmp_path: Path) -> None:
    alone, watching = fragmenta.train(TINY, "CartPole-v1", policy), Watching()
    options = RunOptions(saving=SaveOptions(checkpoint_every=4, keep_last=9), evaluation=EvaluationOptions(5, 2))
    result = fragmenta.train(
        TINY, "CartPole-v1", policy, run_dir=tmp_path / "run", options=options, callbacks=[watching]
    )
    assert result.summary["params_sha256"] == alone.summary["params_sha256"] == watching.fingerprints[-1]
    assert watching.iterations == list(range(1, 11))
    assert len(set(watching.fingerprints)) == 10
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["double"] for line in lines] == list(range(2, 22, 2))
    assert {json.loads(line)["weight"] for line in lines} == {0.5}
    written = {int(path.name) for path in watching.checkpoints}
    assert 10 in written
    assert {4, 5, 8, 10} >= written, "those that were due, and the best of the two evaluated"
    evaluations = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert watching.evaluations == [json.loads(line) for line in evaluations]
    assert result.summary["ended"] == "completed"


@pytest.mark.full
def test_the_parameters_of_a_moment_are_those_of_a_run_that_ends_there() -> None:
    kept: list[Any] = []

    class Keep:
        def on_iteration(self, moment: Moment) -> None:
            kept.append(jax.device_get(moment.params))

    fragmenta.train(TINY, "CartPole-v1", callbacks=[Keep()])
    short = fragmenta.train(TINY, "CartPole-v1", callbacks=[StopAfter(3)])
    assert_same(short.params, kept[2], relative=0)


class StopAfter:
    def __init__(self, iteration: int, reason: str = "") -> None:
        self._iteration, self._reason = iteration, reason

    def on_iteration(self, moment: Moment) -> Any:
        if moment.progress.iteration == self._iteration:
            if not self._reason:
                return False
            moment.stop(self._reason)
        return None


@pytest.mark.full
@pytest.mark.parametrize(
    ("reason", "ended"), [("", "StopAfter.on_iteration returned False"), ("enough seen", "enough seen")]
)
def test_a_run_that_a_callback_ends_is_whole_and_can_be_resumed(reason: str, ended: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = fragmenta.train(TINY, "CartPole-v1", run_dir=run, callbacks=[StopAfter(4, reason)])
    assert result.summary["iterations"] == 4
    assert json.loads((run / "summary.json").read_text())["ended"] == ended
    assert sha256(fragmenta.load(run).params()) == result.summary["params_sha256"]
    resumed = fragmenta.resume(run)
    assert resumed.summary["ended"] == "completed"
    assert resumed.summary["params_sha256"] == fragmenta.train(TINY, "CartPole-v1").summary["params_sha256"]


@pytest.mark.full
def test_a_run_ends_at_the_return_it_was_asked_for() -> None:
    results = [fragmenta.train("ppo", "ProbeAction", stop_at_return=0.8, **EASY) for _ in range(2)]
    summary = results[0].summary
    assert summary["ended"] == f"the mean return of the latest episodes is {summary['return_mean']:.1f}, at least 0.8"
    assert summary["return_mean"] >= 0.8
    assert summary["iterations"] < 200
    before = fragmenta.train("ppo", "ProbeAction", **EASY | {"total_steps": 256 * (summary["iterations"] - 1)})
    assert before.summary["return_mean"] < 0.8
    assert results[1].summary["params_sha256"] == summary["params_sha256"]


@pytest.mark.full
def test_the_command_line_ends_at_the_return_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in EASY.items()]
    run = ["--run-dir", str(tmp_path / "run"), "--sinks", "none"]
    assert main(["train", "ppo", "ProbeAction", *flags, *run, "--stop-at-return", "0.8"]) == 0
    assert "ended early: the mean return of the latest episodes is 0." in capsys.readouterr().out


@pytest.mark.full
def test_an_exception_in_a_callback_keeps_its_traceback_and_saves_the_run(tmp_path: Path) -> None:
    class Broken:
        def on_iteration(self, moment: Moment) -> None:
            if moment.progress.iteration == 3:
                raise LookupError("the scale is broken")

    with pytest.raises(LookupError, match="the scale is broken"):
        fragmenta.train(TINY, "CartPole-v1", run_dir=tmp_path / "run", callbacks=[Broken()])
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert fragmenta.resume(tmp_path / "run").summary["ended"] == "completed"


class Misspelt:
    def on_iterations(self, moment: Moment) -> None: ...


class Replacing:
    def on_iteration(self, moment: Moment) -> None:
        moment.add(steps=3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Misspelt(), "unknown method of callback Misspelt 'on_iterations': did you mean 'on_iteration'"),
        (print, "has no method that is called: give an object with one of on_iteration, on_evaluation, on_checkpoint"),
        (Watching, "has no method that is called: give an object"),
        (Replacing(), "a callback adds 'steps', which the record has already: choose another name"),
    ],
)
def test_mistakes_are_one_line(callback: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fragmenta.train(TINY, "CartPole-v1", callbacks=[callback])
