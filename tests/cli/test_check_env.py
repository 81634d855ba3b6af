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


def test_a_sound_environment_on_the_host(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    code, printed = run_check_env(capsys, monkeypatch, "gymnasium:CartPole-v1", "--num-envs", "4")
    assert code == 0
    assert "gymnasium:CartPole-v1 is sound" in printed
    for mode in ("serial", "threads", "processes"):
        assert f"{mode}  " in printed
    assert "fused                  no: policy 'fused' is one compiled program" in printed
    assert "single_learner_coarse  yes" in printed
    assert "PROBLEM" not in printed


def test_a_sound_environment_in_jax(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    code, printed = run_check_env(capsys, monkeypatch, "ProbeDiscount")
    assert code == 0
    assert "one compiled program" in printed
    assert "fused                  yes" in printed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("Unseeded", "PROBLEM  determinism: violated from step", marks=pytest.mark.full),
        ("Entangled", "PROBLEM  independence: violated from step"),
        pytest.param("OutOfBounds", "of the values are outside [-1, 1]", marks=pytest.mark.full),
        pytest.param("Ignorant", "ok       seeds: a different seed changes nothing", marks=pytest.mark.full),
    ],
)
def test_defects_are_reported(capsys: pytest.CaptureFixture[str], monkeypatch: Any, name: str, message: str) -> None:
    flags = ("--env-mode", "serial") if name == "Entangled" else ()
    code, printed = run_check_env(capsys, monkeypatch, f"unsound_envs:{name}", "--num-envs", "4", *flags)
    assert message in printed
    assert code == (0 if name == "Ignorant" else 1)


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPole-v7"]) == 2
    assert capsys.readouterr().err.startswith(
        "fragmenta: unknown environment 'CartPole-v7': did you mean 'CartPole-v1'?"
    )
