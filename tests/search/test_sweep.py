"""Sweeps: every trial equals a separate run; groups, methods, files, and continuing after a stop."""

import csv
import dataclasses
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fragmenta
from fragmenta import A2C, PPO, JobOptions, Trial
from fragmenta.cli.main import main
from fragmenta.errors import ConfigError
from fragmenta.runs.opening import load
from fragmenta.search import in_process
from fragmenta.training.stopping import StoppedError
from helpers import assert_same
from odd_numbers import Bonus
from small_algorithm import Reinforce

SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 16, "hidden": (8,), "total_steps": 640}
TINY = A2C(**SMALL)


class Watching:
    """Notes the groups, and may stop the sweep after some progress."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.groups: list[tuple[int, int, int]] = []
        self.done: list[int] = []
        self._stop_after = stop_after

    def grouped(self, programs: int, trials: int, processes: int) -> None:
        self.groups.append((programs, trials, processes))

    def progressed(self, steps: int, total: int, best: float | None) -> None:
        if self._stop_after is not None and steps >= self._stop_after:
            signal.raise_signal(signal.SIGTERM)

    def finished(self, trials: Sequence[Trial]) -> None:
        self.done += [trial.number for trial in trials]


def sweep(*arguments: Any, **settings: Any) -> fragmenta.Sweep:
    """A sweep in this process: starting others takes seconds."""
    return fragmenta.sweep(*arguments, **{"options": JobOptions(jobs=1)} | settings)


@pytest.mark.full
def test_a_sweep_takes_what_train_takes_and_shows_its_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = {"learning_rate": (1e-3, 1e-2)}
    named = sweep("a2c", "CartPole-v1", search, tmp_path / "named", method="grid", **SMALL)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "training 2 trials as one program" in shown.err
    again = sweep(A2C, "CartPole-v1", search, tmp_path / "class", method="grid", progress=False, **SMALL)
    assert capsys.readouterr() == ("", "")
    assert outcome(named) == outcome(again)
    assert repr(named).startswith(f"Sweep '{tmp_path / 'named'}' of 2 trials: the best ")
    assert "with learning_rate 0.0" in repr(named)
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        sweep("a2c", "CartPole-v1", search, tmp_path / "wrong", learning_rat=1)


def outcome(result: fragmenta.Sweep) -> list[tuple[Any, ...]]:
    return [(trial.number, trial.values, trial.return_mean, trial.per_seed) for trial in result.trials]


@pytest.mark.full
@pytest.mark.brief("algorithm0*")
@pytest.mark.parametrize(
    ("algorithm", "search"),
    [
        (TINY, {"learning_rate": (1e-3, 3e-2), "gamma": (0.9, 0.99)}),
        pytest.param(
            PPO(epochs=2, minibatches=2, compute="bfloat16", **SMALL),
            {"learning_rate": (1e-3, 3e-2), "clip": (0.1, 0.3), "gae_lambda": (0.8,), "max_grad_norm": (0.1,)},
            marks=pytest.mark.full,
        ),
        (PPO(epochs=2, minibatches=2, **SMALL), {"learning_rate": (1e-3, 3e-2), "clip": (0.1,), "value_cost": (0.2,)}),
    ],
)
def test_every_trial_equals_a_separate_run(algorithm: fragmenta.Algorithm, search: Any, tmp_path: Path) -> None:
    watching = Watching()
    result = sweep(algorithm, "CartPole-v1", search, tmp_path / "s", method="grid", seeds=2, seed=3, watcher=watching)
    assert watching.groups == [(1, len(result.trials), 1)], "one program trains all trials"
    for trial in result.trials:
        for i, return_mean in enumerate(trial.per_seed):
            alone = fragmenta.train(dataclasses.replace(algorithm, **trial.values), "CartPole-v1", seed=3 + i)
            assert return_mean == pytest.approx(alone.summary["return_mean"], rel=1e-5)
    best = load(tmp_path / "s" / "best")
    alone = fragmenta.train(best.algorithm, "CartPole-v1", seed=best.config["seed"])
    assert {name: getattr(best.algorithm, name) for name in search} == result.best.values
    assert_same(alone.params, best.params(), 1e-5)


@pytest.mark.full
def test_numbers_that_decide_about_the_program_make_groups(tmp_path: Path) -> None:
    search = {"bonus": (0.0, 0.5), "learning_rate": "log:1e-3:1e-1:3", "scale": (1.0, 2.0)}
    watching = Watching()
    result = sweep(Bonus(total_steps=400), "CartPole-v1", search, tmp_path / "s", method="grid", watcher=watching)
    assert watching.groups == [(2, 12, 1)], "a group per bonus; rates and scales share a program"
    for trial in (result.trials[0], result.trials[-1]):
        alone = fragmenta.train(Bonus(total_steps=400, **trial.values), "CartPole-v1")
        assert trial.return_mean == pytest.approx(alone.summary["return_mean"], rel=1e-5)


@pytest.mark.full
def test_a_stopped_sweep_continues_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fragmenta.search.program.MOST", 2)
    search = {"learning_rate": "log:1e-3:1e-1", "horizon": (8, 16)}
    whole = sweep(TINY, "CartPole-v1", search, tmp_path / "whole", trials=6)
    stopped = tmp_path / "stopped"
    with pytest.raises(StoppedError, match="continue with the same command and --run-dir"):
        sweep(TINY, "CartPole-v1", search, stopped, trials=6, watcher=Watching(stop_after=200))
    assert list((stopped / "pending").iterdir()), "the group in training is saved"
    watching = Watching()
    continued = sweep(TINY, "CartPole-v1", search, stopped, trials=6, watcher=watching)
    assert outcome(continued) == outcome(whole)
    assert not list((stopped / "pending").iterdir())
    assert json.loads((stopped / "trials.json").read_text()) == json.loads((tmp_path / "whole/trials.json").read_text())
    again = Watching()
    assert outcome(sweep(TINY, "CartPole-v1", search, stopped, trials=6, watcher=again)) == outcome(whole)
    assert again.groups == [], "a finished sweep trains nothing"


@pytest.mark.full
def test_finished_groups_are_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = {"learning_rate": (1e-3, 1e-2), "horizon": (8, 16)}
    train_group, calls = in_process.train_group, []

    def killed_in_the_second(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise MemoryError
        return train_group(*arguments)

    monkeypatch.setattr(in_process, "train_group", killed_in_the_second)
    with pytest.raises(MemoryError):
        sweep(TINY, "CartPole-v1", search, tmp_path / "s", method="grid")
    watching = Watching()
    result = sweep(TINY, "CartPole-v1", search, tmp_path / "s", method="grid", watcher=watching)
    assert (len(watching.done), len(result.trials)) == (2, 4)


def test_a_trial_that_diverges_is_last_and_harms_no_other(tmp_path: Path) -> None:
    search = {"learning_rate": (1e-2, 1e30)}
    result = sweep(TINY, "CartPole-v1", search, tmp_path / "s", method="grid")
    assert [trial.diverged for trial in result.trials] == [False, True]
    assert result.trials[1].return_mean is None
    alone = fragmenta.train(dataclasses.replace(TINY, learning_rate=1e-2), "CartPole-v1")
    assert result.best.return_mean == pytest.approx(alone.summary["return_mean"], rel=1e-5)


@pytest.mark.full
def test_population_copies_the_best_and_changes_their_numbers(tmp_path: Path) -> None:
    search = {"learning_rate": "log:1e-5:1e-1", "entropy_cost": (0.0, 0.01, 0.1)}
    settings = {"trials": 8, "method": "pbt", "total_steps": 6_400}
    result = sweep(TINY, "CartPole-v1", search, tmp_path / "s", **settings)
    moved = [trial for trial in result.trials if trial.changes]
    assert moved
    for trial in moved:
        assert trial.values == trial.changes[-1][1]
        assert all(1e-5 <= values["learning_rate"] <= 1e-1 for _, values in trial.changes)
    assert load(tmp_path / "s" / "best").params()
    stopped = tmp_path / "stopped"
    with pytest.raises(StoppedError):
        sweep(TINY, "CartPole-v1", search, stopped, **settings, watcher=Watching(stop_after=3_000))
    assert outcome(sweep(TINY, "CartPole-v1", search, stopped, **settings)) == outcome(result)


@pytest.mark.full
def test_tpe_draws_towards_good_values(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    search = {"learning_rate": "log:1e-6:1e-1", "center": (True, False)}
    watching = Watching()
    result = sweep(
        Bonus(total_steps=2_000), "CartPole-v1", search, tmp_path / "s", trials=16, method="tpe", watcher=watching
    )
    assert [trials for _, trials, _ in watching.groups] == [2] * 8, "in batches, each after the results of the others"
    assert sorted(trial.number for trial in result.trials) == list(range(16))
    rates = {trial.number: trial.values["learning_rate"] for trial in result.trials}
    assert np.median([rates[n] for n in range(8, 16)]) > 3e-4, "the middle of the range"


@pytest.mark.full
def test_trials_on_the_host_are_trained_one_after_the_other(tmp_path: Path) -> None:
    algorithm = A2C(num_envs=2, horizon=8, hidden=(8,), total_steps=320)
    watching = Watching()
    search = {"learning_rate": (1e-3, 1e-2)}
    result = sweep(algorithm, "gymnasium:CartPole-v1", search, tmp_path / "s", method="grid", watcher=watching)
    assert watching.groups == [(0, 2, 1)]
    assert load(tmp_path / "s" / "best").algorithm == dataclasses.replace(algorithm, **result.best.values)


@pytest.mark.full
def test_the_command_writes_tables_a_picture_and_a_run(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "s"
    command = ["sweep", "a2c", "CartPole-v1", "--search", "learning_rate=log:1e-3:1e-1", "hidden=8,4x4"]
    command += ["--trials", "4", "--num-envs", "4", "--total-steps", "640", "--run-dir", str(run), "--jobs", "1"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "training 4 trials as 2 programs" in shown
    assert f"fragmenta eval {run / 'best'}" in shown
    rows = list(csv.DictReader((run / "trials.csv").read_text().splitlines()))
    returns = [float(row["return_mean"]) for row in rows]
    assert returns == sorted(returns, reverse=True)
    assert {row["hidden"] for row in rows} == {"(8,)", "(4, 4)"}
    assert (run / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert main(["eval", str(run / "best"), "--episodes", "2"]) == 0
    assert main(["resume", str(run / "best"), "--total-steps", "1280", "--json"]) == 0
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    assert [row["rank"] for row in json.loads(capsys.readouterr().out)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("search", "settings", "message"),
    [
        (["learning_rat=1,2"], [], "unknown hyper-parameter of A2C 'learning_rat': did you mean 'learning_rate'?"),
        (["learning_rate"], [], "search has 'learning_rate': write FIELD=RANGE"),
        (["learning_rate=a,b"], [], "search has 'a' for learning_rate, which takes numbers"),
        (["learning_rate=log:0:1"], [], "it needs 0 < LOW < HIGH"),
        (["learning_rate=log:1e-4:1e-2"], ["--method", "grid"], "a grid needs a number of points"),
        (["learning_rate=1,2"], ["--method", "grid", "--trials", "3"], "the grid has 2 points: leave trials out"),
        (["compute=uniform:0:1"], [], "compute is not a number: list its values"),
        (["horizon=0,8"], ["--method", "grid"], "trial 0 (horizon=0): horizon is 0: it must be at least 1"),
        (["horizon=8,16"], ["--method", "pbt"], "but horizon is part of the program"),
        (["gamma=0.9,0.99"], ["--method", "best"], "unknown method 'best'"),
        (["gamma=0.9,0.99"], ["--trials", "0"], "trials is 0: it must be at least 1"),
        (["gamma=0.9,0.99"], ["--seeds", "0"], "seeds is 0: it must be at least 1"),
        (["gamma=0.9,0.99"], ["--jobs", "0"], "jobs is 0: it must be at least 1"),
        (["gamma=0.9,0.99"], ["--jobs", "2", "--engine", "raye"], "unknown engine 'raye': did you mean 'ray'?"),
        (["gamma=0.9,0.99"], ["--jobs", "2", "--engine", "local"], "engine is 'local', which starts no processes"),
        ([], [], "search is empty"),
    ],
)
def test_mistakes_get_one_line(
    search: list[str], settings: list[str], message: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--search", *search] if search else []
    assert main(["sweep", "a2c", "CartPole-v1", *words, *settings]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_directory_of_another_sweep_is_refused(tmp_path: Path) -> None:
    sweep(TINY, "CartPole-v1", {"gamma": (0.9,)}, tmp_path / "s", method="grid")
    with pytest.raises(fragmenta.ConfigError, match="is a sweep with seeds 1, not 2"):
        sweep(TINY, "CartPole-v1", {"gamma": (0.9,)}, tmp_path / "s", method="grid", seeds=2)
    (tmp_path / "other").mkdir()
    with pytest.raises(fragmenta.ConfigError, match="exists and is not a sweep"):
        sweep(TINY, "CartPole-v1", {"gamma": (0.9,)}, tmp_path / "other", method="grid")


@pytest.mark.full
def test_an_algorithm_that_reports_no_returns_is_ranked_by_its_world(tmp_path: Path) -> None:
    found = sweep(Reinforce(total_steps=4_000), "CartPole-v1", {"learning_rate": (1e-3, 1e-2)}, tmp_path / "s")
    assert all(trial.return_mean is not None and trial.return_mean > 5 for trial in found.trials)
