"""Where the user leaves it open how environments are stepped, a measurement decides, and the result is the same."""

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fragmenta import PPO, EnvOptions, RunOptions, make, resume, train
from fragmenta_host.catalogue import Spec
from fragmenta_host.options import PoolOptions
from fragmenta_host.pool import Pool

COUNT = 4
SMALL = PPO(num_envs=COUNT, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=64)


class Line:
    """A watcher that keeps the line about the environments."""

    text = ""

    def planned(self, *arguments: Any) -> None:
        self.text = arguments[-1]

    def placed(self, *_: Any) -> None: ...
    def remarked(self, text: str) -> None: ...
    def compiled(self, seconds: float) -> None: ...
    def progressed(self, progress: Any) -> None: ...


def options(mode: str = "auto", **arguments: Any) -> RunOptions:
    return RunOptions(env=EnvOptions(env_args=json.dumps(arguments), env_mode=mode, env_workers=2))


def pool(name: str, **arguments: Any) -> Pool:
    return Pool(Spec("patient_envs", name, arguments), PoolOptions(workers=2))


def makers(log: Path) -> list[int]:
    """The process of each environment that was made, after the one that is made to see its spaces."""
    return [int(line) for line in log.read_text().split()][1:]


@pytest.mark.full
@pytest.mark.parametrize("name", ["Patient", "Exclusive"])
def test_the_faster_way_is_chosen_and_the_line_has_what_was_measured(name: str) -> None:
    line = Line()
    train(SMALL, f"patient_envs:{name}", watcher=line, options=options())
    measured = re.search(
        r"a step of all takes ([\d.]+) ms one after the other, ([\d.]+) ms in 2 processes\)$", line.text
    )
    assert measured, line.text
    serial, processes = map(float, measured.groups())
    # Which one it is depends on what else the machine does; that it is the faster one does not.
    chosen = "stepped in 2 processes (" if processes < serial else "stepped one after the other in this process ("
    assert chosen in line.text


@pytest.mark.full
def test_the_result_does_not_depend_on_the_choice_or_on_having_measured(tmp_path: Path) -> None:
    hashes = {
        mode: train(SMALL, "patient_envs:Patient", options=options(mode)).summary["params_sha256"]
        for mode in ("auto", "serial", "processes")
    }
    assert len(set(hashes.values())) == 1, hashes
    train(SMALL, "patient_envs:Patient", run_dir=tmp_path / "run", options=options())
    line = Line()
    resumed = resume(tmp_path / "run", total_steps=128, watcher=line)
    assert resumed.summary["total_steps"] == 128
    assert "stepped in 2 processes (a step of" in line.text


@pytest.mark.full
def test_processes_that_were_measured_are_those_of_the_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environments = pool("Patient", log=str(log))
    try:
        environments.settle(COUNT, 1)
        measured = makers(log)
        observation, _ = environments.reset(np.arange(COUNT))
        assert environments.mode == "processes"
        assert observation[0][:, 0].tolist() == [1.0] * COUNT, "every environment begins its first episode"
    finally:
        environments.close()
    assert len(set(measured)) == 2
    assert sorted(makers(log)) == sorted(2 * measured)


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [({"seconds": 0.0}, "serial"), ({"seconds": 0.03}, "processes")],
    ids=["too short to be divided", "so long that any overhead is small"],
)
def test_what_is_clear_is_not_measured(
    arguments: dict[str, Any], mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fragmenta_host.pool.cores", lambda: 2)
    log = tmp_path / "log"
    environments = Pool(Spec("patient_envs", "Patient", {**arguments, "log": str(log)}))
    try:
        environments.settle(2, 1)
        assert makers(log) == []
        environments.reset(np.arange(2))
        assert environments.mode == mode
    finally:
        environments.close()


def test_slow_resets_do_not_prolong_the_measurement() -> None:
    environments = pool("Patient", reset_seconds=0.1, ends=2)
    started = time.monotonic()
    try:
        environments.settle(COUNT, 1)
    finally:
        environments.close()
    assert time.monotonic() - started < 6, "the processes have started, and it was given up soon"


def test_lanes_are_measured_at_once() -> None:
    environments = pool("Patient")
    try:
        environments.settle(COUNT, 2)
        assert environments.where(COUNT, 2).startswith("on the host, stepped in 2 processes (a step of all takes")
    finally:
        environments.close()


@pytest.mark.full
@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_environments_that_fail_while_being_measured_are_kept_in_processes(fault: str) -> None:
    # The trial of one environment ends before the fault, the measurement of several does not.
    spec = Spec("faulty_envs", "Steady", {"fault": fault, "at": 1_500})
    environments = Pool(spec, PoolOptions(workers=2))
    try:
        environments.settle(COUNT, 1)
        environments.reset(np.arange(COUNT))
        assert environments.mode == "processes"
        assert not environments.step(0, np.zeros(COUNT, np.int32)).truncated.any()
    finally:
        environments.close()


def test_before_anything_is_measured_both_ways_are_named() -> None:
    where = make("patient_envs:Patient", EnvOptions(env_workers=2)).where(COUNT, 1)
    assert (
        where == "on the host, stepped one after the other in this process or in 2 processes, whichever proves faster"
    )


@pytest.mark.full
def test_evaluation_reuses_what_was_measured(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environments = pool("Patient", log=str(log))
    pools: Sequence[Pool] = (environments, environments.twin())
    try:
        for each in pools:
            each.reset(np.arange(COUNT))
        assert [each.mode for each in pools] == ["processes"] * 2
    finally:
        for each in pools:
            each.close()
    assert len(makers(log)) == 3 * COUNT, "made once to be measured, and once in either pool"
