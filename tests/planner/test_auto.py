"""What the planner decides where the user leaves the distribution policy open."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fragmenta import PPO, Cluster, ConfigError, RunOptions, make, train
from fragmenta.planner import auto, search
from fragmenta.planner.auto import Decision, Question, decide, faster
from fragmenta.tracing.trace import trace

SMALL = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=10**9)


@pytest.fixture(autouse=True)
def no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is known of this machine, and what is measured is forgotten after the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def question(algorithm: PPO = SMALL, **changes: Any) -> Question:
    env = make("CartPole-v1")
    default = Decision("fused", "local", Cluster(("cpu:0",), 1))
    asked = Question(algorithm, env, trace(algorithm, env), default, ("cpu:0", "cpu:1"), None, 0, True)
    return dataclasses.replace(asked, **changes)


def test_short_training_is_not_worth_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "measure_units", None)  # calling it would raise
    decision = decide(question(dataclasses.replace(SMALL, total_steps=1000)))
    assert (decision.policy, decision.steps_per_second) == ("fused", None)
    assert "without comparing others" in decision.reason


def test_short_training_is_predicted_if_that_is_asked_for() -> None:
    decision = decide(question(dataclasses.replace(SMALL, total_steps=1000), must_predict=True))
    assert decision.steps_per_second is not None


def test_what_was_measured_is_remembered_for_the_same_work(no_profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = decide(question())
    assert first.steps_per_second is not None
    assert f"predicted {first.steps_per_second:,.0f} steps/s" in first.reason
    (path,) = (no_profile / "fragmenta" / "profiles").iterdir()
    assert json.loads(path.read_text())["notes"]
    monkeypatch.setattr(search, "measure_units", None)
    assert decide(question()) == first
    assert decide(question(dataclasses.replace(SMALL, learning_rate=1e-4))) == first


def test_a_damaged_profile_is_an_empty_one(no_profile: Path) -> None:
    decide(question())
    (path,) = (no_profile / "fragmenta" / "profiles").iterdir()
    path.write_text(path.read_text()[:-40])
    assert decide(question()).steps_per_second is not None
    assert json.loads(path.read_text())["notes"]


def test_replicas_that_the_user_chose_stay() -> None:
    assert decide(question(replicas=2)).cluster.replicas == 2


def test_a_distribution_policy_that_changes_the_result_is_not_chosen() -> None:
    decision = decide(question())
    assert decision.policy in auto.SYNCHRONOUS
    assert decision.cluster.lag == 0


def test_nothing_is_faster_than_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "WORTH_CHANGING", 100.0)
    asked = question()
    assert faster(asked, asked.default) is None


def test_what_is_faster_by_now_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "WORTH_CHANGING", 0.0)
    asked = question()
    decision = faster(asked, asked.default)
    assert decision is not None
    assert decision.steps_per_second is not None


def test_training_without_a_distribution_policy_gives_the_same_result() -> None:
    algorithm = dataclasses.replace(SMALL, total_steps=320)
    options = RunOptions(replan=True)  # so that it predicts although training is short
    chosen = train(algorithm, "CartPole-v1", progress=False, options=options)
    expected = train(algorithm, "CartPole-v1", policy="fused", progress=False)
    for ours, plain in zip(jax.tree.leaves(chosen.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(plain), rtol=1e-5, atol=1e-6)


def test_a_plan_that_the_user_chose_is_not_changed() -> None:
    with pytest.raises(ConfigError, match="replan changes plans that the planner chose"):
        train(SMALL, "CartPole-v1", policy="fused", progress=False, options=RunOptions(replan=True))
