"""What environments return and print: values that cannot be used are faults, values out of bounds are said once."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fragmenta_core import bounds
from fragmenta_core.faults import EnvironmentFaultError
from fragmenta_host.catalogue import Spec
from fragmenta_host.options import PoolOptions
from fragmenta_host.pool import Pool

COUNT = 4
MODES = ("serial", "threads", "processes")


def run(name: str, mode: str = "serial", steps: int = 20) -> None:
    environments = Pool(Spec("unsound_envs", name), PoolOptions(mode, 2))
    try:
        environments.reset(np.arange(COUNT))
        for _ in range(steps):
            environments.step(0, np.zeros(COUNT, np.int32))
    finally:
        environments.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MissingKey", "step 0: reset returned its observation without 'place', expected pair, place"),
        ("Nothing", "step 0: reset returned None as its observation, expected a dictionary with pair, place"),
        ("PartIsNothing", "step 0: reset returned None as its observation['place'], expected Box("),
        ("ShortTuple", "step 0: reset returned (6,) as its observation['pair'], expected a tuple of 2"),
        ("OldReset", "step 0: reset returned dict, expected observation, info"),
        ("WordReward", "step 1: step returned reward '1.0', expected a number"),
        ("ArrayReward", "step 1: step returned reward an array of shape (1,), expected a number"),
        ("NoReward", "step 1: step returned reward None, expected a number"),
        ("NoFlag", "step 1: step returned terminated None, expected True or False"),
    ],
)
def test_what_cannot_be_used_is_one_line_without_our_traceback(name: str, message: str) -> None:
    with pytest.raises(EnvironmentFaultError) as caught:
        run(name)
    assert str(caught.value).startswith(f"environment 0 of unsound_envs:{name}, {message}")
    assert caught.value.trace == ""


@pytest.mark.full
@pytest.mark.brief("WrongNumber*-processes", "Nested*-serial")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WrongPart", "5 in its observation 'place'[1], expected -2 to 2"),
        ("WrongNumber", "14 in its observation 'pair.0', expected 5 to 11"),
        ("Nested", None),
    ],
)
def test_a_value_out_of_bounds_is_said_once(
    name: str, message: str | None, mode: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_reported", set())
    monkeypatch.setattr("fragmenta_host.env_process._printed", set())
    for _ in range(2):
        run(name, mode)
    said = [line for line in capfd.readouterr().err.splitlines() if "returned" in line]
    expected = [f"fragmenta: an environment returned {message}; 'fragmenta check-env' counts how often"]
    assert said == (expected if message else [])


def test_another_value_out_of_the_same_bounds_is_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_reported", set())
    lines = [
        bounds.warning(f"{value} in its observation 'place'[{i}], expected -2 to 2") for i, value in enumerate((5, 4.2))
    ]
    assert [bounds.is_news(line) for line in (lines[0], f"actor[1]: {lines[1]}", "another line", "another line")] == [
        True, False, True, True,
    ]  # fmt: skip
    assert bounds.is_news(lines[0].replace("place", "pair")), "another part of the observation"
    with bounds.silenced():
        assert not bounds.is_news(bounds.warning("9 in its observation, expected 0 to 6"))


@pytest.mark.brief("processes")
@pytest.mark.parametrize("mode", MODES)
def test_print_reaches_the_person_at_once(
    mode: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fragmenta_host.env_process._printed", set())
    environments = Pool(Spec("unsound_envs", "Talkative"), PoolOptions(mode, 2))
    text, end = "", time.monotonic() + 20
    try:
        environments.reset(np.arange(COUNT))
        environments.step(0, np.zeros(COUNT, np.int32))
        while "the door is open" not in text and time.monotonic() < end:  # while the environments are still running
            text += "".join(capfd.readouterr())
            time.sleep(0.01)
    finally:
        environments.close()
    assert "the door is open" in text


@pytest.mark.full
@pytest.mark.brief("flags0")
@pytest.mark.parametrize("flags", [("--env-mode", "serial"), ("--engine", "processes")])
def test_print_reaches_the_person_in_training_and_does_not_mix_with_json(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "fragmenta.cli.main", "train", "ppo", "unsound_envs:Talkative", *flags, "--json"]
    sizes = ["--num-envs", "2", "--horizon", "8", "--total-steps", "32", "--run-dir", str(tmp_path / "run")]
    folder = Path(__file__).parents[1] / "support"
    completed = subprocess.run([*command, *sizes], cwd=folder, capture_output=True, text=True, timeout=200)
    assert completed.returncode == 0, completed.stderr
    assert "the door is open" in completed.stderr
    assert json.loads(completed.stdout)["total_steps"] == 32
