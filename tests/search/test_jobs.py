"""Sweeps in several processes: the same trials as in one, lost processes replaced, stopped and continued."""

import dataclasses
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import fragmenta
from fragmenta import A2C, JobOptions, Trial
from fragmenta.runs.opening import load
from fragmenta.training.stopping import StoppedError
from odd_numbers import Unlucky

TINY = A2C(num_envs=4, horizon=16, hidden=(8,), total_steps=640)
LONG = dataclasses.replace(TINY, total_steps=64_000)
SEARCH = {"learning_rate": "log:1e-3:1e-1", "gamma": (0.9, 0.99)}
ALONE, TWO = JobOptions(jobs=1), JobOptions(jobs=2)


class Watching:
    """Does something after some progress, once."""

    def __init__(self, do: Any = None) -> None:
        self.processes: list[int] = []
        self._do = do

    def grouped(self, programs: int, trials: int, processes: int) -> None:
        self.processes.append(processes)

    def progressed(self, steps: int, total: int, best: float | None) -> None:
        if self._do is not None:
            do, self._do = self._do, None
            do()

    def finished(self, trials: Sequence[Trial]) -> None:
        pass


def children() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "fragmenta_launch.child" in " ".join(p.cmdline())]


def assert_alike(result: fragmenta.Sweep, expected: fragmenta.Sweep) -> None:
    """The same trials: programs of another size may round differently."""
    by_number = {trial.number: trial for trial in expected.trials}
    assert {trial.number for trial in result.trials} == set(by_number)
    for trial in result.trials:
        assert trial.values == by_number[trial.number].values
        assert trial.return_mean == pytest.approx(by_number[trial.number].return_mean, rel=1e-5)


@pytest.mark.full
def test_trials_in_two_processes_equal_those_in_one(tmp_path: Path) -> None:
    watching = Watching()
    both = fragmenta.sweep(TINY, "CartPole-v1", SEARCH, tmp_path / "b", trials=5, options=TWO, watcher=watching)
    one = fragmenta.sweep(TINY, "CartPole-v1", SEARCH, tmp_path / "a", trials=5, options=ALONE)
    assert watching.processes == [2]
    assert_alike(both, one)
    best = load(tmp_path / "b" / "best")
    assert {name: getattr(best.algorithm, name) for name in SEARCH} == both.best.values
    assert not children()


@pytest.mark.full
def test_a_killed_process_is_replaced_and_the_sweep_can_be_stopped_and_continued(tmp_path: Path, capfd: Any) -> None:
    def kill_one() -> None:
        os.kill(children()[0].pid, signal.SIGKILL)

    settings: dict[str, Any] = {"trials": 4, "options": TWO}
    killed = fragmenta.sweep(LONG, "CartPole-v1", SEARCH, tmp_path / "k", **settings, watcher=Watching(kill_one))
    assert "was killed by SIGKILL; replaced (1 of 3)" in capfd.readouterr().err
    stopped = tmp_path / "s"
    stop = Watching(lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(StoppedError, match="continue with the same command"):
        fragmenta.sweep(LONG, "CartPole-v1", SEARCH, stopped, **settings, watcher=stop)
    assert not children()
    # One process now trains the two parts that two processes began.
    continued = fragmenta.sweep(LONG, "CartPole-v1", SEARCH, stopped, trials=4, options=ALONE)
    assert_alike(continued, killed)


@pytest.mark.full
def test_an_error_in_a_process_has_its_own_traceback(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError in trials-") as raised:
        fragmenta.sweep(Unlucky(total_steps=400), "CartPole-v1", {"scale": (1.0, 2.0)}, tmp_path / "s", options=TWO)
    assert "odd_numbers.py" in raised.value.trace  # type: ignore[attr-defined]
    assert not children()


@pytest.mark.full
def test_trials_on_the_host_are_trained_in_processes(tmp_path: Path) -> None:
    algorithm = dataclasses.replace(TINY, num_envs=2, horizon=8, total_steps=320)
    search = {"learning_rate": (1e-3, 1e-2)}
    for path, options in ((tmp_path / "a", ALONE), (tmp_path / "b", TWO)):
        fragmenta.sweep(algorithm, "gymnasium:CartPole-v1", search, path, method="grid", options=options)
    runs = [sorted(str(p.relative_to(tmp_path / s)) for p in (tmp_path / s / "runs").rglob("*.json")) for s in "ab"]
    assert runs[0] == runs[1]
    assert load(tmp_path / "b" / "best").params()


@pytest.mark.full
def test_trials_on_ray_equal_those_here(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    on_ray = JobOptions(jobs=2, engine="ray")
    ray = fragmenta.sweep(TINY, "CartPole-v1", SEARCH, tmp_path / "r", trials=4, options=on_ray)
    assert_alike(ray, fragmenta.sweep(TINY, "CartPole-v1", SEARCH, tmp_path / "a", trials=4, options=ALONE))
