"""`fragmenta check-env`: sound environments pass, others are told what is wrong; scripts can rely on the exit code."""

from pathlib import Path
from typing import Any

import pytest

from fragmenta.cli.main import main


def checked(capsys: pytest.CaptureFixture[str], monkeypatch: Any, *arguments: str) -> tuple[int, str]:
    monkeypatch.chdir(Path(__file__).parent.parent)
    monkeypatch.setattr("fragmenta.checks.conformance.STEPS", 40)
    code = main(["check-env", *arguments])
    return code, capsys.readouterr().out


def test_a_sound_environment_on_the_host(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    code, printed = checked(capsys, monkeypatch, "gymnasium:CartPole-v1", "--num-envs", "4")
    assert code == 0
    assert "gymnasium:CartPole-v1 is sound" in printed
    for how in ("serial", "threads", "processes"):
        assert f"{how}  " in printed
    assert "fused                  no: policy 'fused' is one compiled program" in printed
    assert "single_learner_coarse  yes" in printed
    assert "PROBLEM" not in printed


def test_one_in_jax(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    code, printed = checked(capsys, monkeypatch, "ProbeDiscount")
    assert code == 0
    assert "one compiled program" in printed
    assert "fused                  yes" in printed


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Unseeded", "PROBLEM  determinism: not so from step"),
        ("Entangled", "PROBLEM  independence: not so from step"),
        ("OutOfBounds", "of the numbers shown are outside [-1, 1]"),
        ("Ignorant", "ok       seeds: another seed changes nothing"),
    ],
)
def test_what_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: Any, name: str, says: str) -> None:
    flags = ("--env-mode", "serial") if name == "Entangled" else ()
    code, printed = checked(capsys, monkeypatch, f"unsound_envs:{name}", "--num-envs", "4", *flags)
    assert says in printed
    assert code == (0 if name == "Ignorant" else 1)


def test_a_name_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "CartPole-v7"]) == 2
    assert capsys.readouterr().err.startswith(
        "fragmenta: unknown environment 'CartPole-v7': did you mean 'CartPole-v1'?"
    )
