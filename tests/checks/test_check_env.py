"""`fragmenta check-env`: sound environments pass, defects are reported, and the exit code says which."""

from pathlib import Path
from typing import Any

import pytest

from fragmenta.cli.main import main


def run_check_env(capsys: pytest.CaptureFixture[str], monkeypatch: Any, *arguments: str) -> tuple[int, str]:
    monkeypatch.chdir(Path(__file__).parents[1] / "support")
    monkeypatch.setattr("fragmenta.checks.conformance.STEPS", 40)
    code = main(["check-env", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.full
def test_a_sound_environment_on_the_host(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    code, printed = run_check_env(capsys, monkeypatch, "gymnasium:CartPole-v1", "--num-envs", "4")
    assert code == 0
    assert "gymnasium:CartPole-v1 is sound" in printed
    for mode in ("serial", "threads", "processes"):
        assert f"{mode}  " in printed
    assert "fused                  no: distribution policy 'fused' is one compiled program" in printed
    assert "single_learner_coarse  yes" in printed
    assert "PROBLEM" not in printed


def test_only_legal_actions_are_tried(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    code, printed = run_check_env(capsys, monkeypatch, "host_envs:StrictPairs", "--num-envs", "2")
    assert code == 0, printed
    assert "host_envs:StrictPairs is sound" in printed


def test_a_sound_environment_in_jax(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    code, printed = run_check_env(capsys, monkeypatch, "ProbeDiscount")
    assert code == 0
    assert "one compiled program" in printed
    assert "fused                  yes" in printed
    assert "single_learner_async   yes" in printed


@pytest.mark.full
@pytest.mark.brief("WrongNumber*")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("Unseeded", "PROBLEM  determinism: violated from step", marks=pytest.mark.full),
        ("Entangled", "PROBLEM  independence: violated from step"),
        pytest.param(
            "OutOfBounds", "returned 2 in its observation[0], expected -1 to 1; 100.0% of the", marks=pytest.mark.full
        ),
        (
            "WrongPart",
            "PROBLEM  observations: returned 5 in its observation 'place'[1], expected -2 to 2; 50.0% of the",
        ),
        (
            "WrongNumber",
            "PROBLEM  observations: returned 14 in its observation 'pair.0', expected 5 to 11; 100.0% of the",
        ),
        (
            "MissingKey",
            "step 0: reset returned its observation without 'place', expected pair, place\n\n",
        ),
        (
            "WordReward",
            "PROBLEM  steps: environment 0 of unsound_envs:WordReward, step 1: step returned reward '1.0', exp",
        ),
        pytest.param("Ignorant", "ok       seeds: a different seed changes nothing", marks=pytest.mark.full),
    ],
)
def test_defects_are_reported(capsys: pytest.CaptureFixture[str], monkeypatch: Any, name: str, message: str) -> None:
    flags = ("--env-mode", "serial") if name == "Entangled" else ()
    code, printed = run_check_env(capsys, monkeypatch, f"unsound_envs:{name}", "--num-envs", "4", *flags)
    assert message in printed
    assert code == (0 if name == "Ignorant" else 1)
    assert "Traceback" not in printed


@pytest.mark.full
def test_a_fault_of_the_environment_is_shown_with_its_own_traceback_only(
    capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "support")
    flags = ["--env-args", '{"fault": "raise"}', "--num-envs", "2"]
    assert main(["check-env", "faulty_envs:Steady", *flags]) == 1
    output = capfd.readouterr()
    assert "PROBLEM  steps: environment 0 of faulty_envs:Steady, step 5: step raised ValueError: the mo" in output.out
    assert "a test step failed" in output.out.splitlines()[0]
    assert output.err.count("Traceback") == 1
    assert "in _raise" in output.err


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPole-v7"]) == 2
    assert capsys.readouterr().err.startswith(
        "fragmenta: unknown environment 'CartPole-v7': did you mean 'CartPole-v1'?"
    )
