"""What the planner decides where the user leaves the distribution policy open."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from fragmenta import PPO, Cluster, ConfigError, EnvOptions, Fragment, RunOptions, make, train
from fragmenta.engines.this_machine import this_machine
from fragmenta.planner import auto, search
from fragmenta.planner.auto import Decision, Question, decide, faster
from fragmenta.planner.candidates import Space, candidates
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile, profile_here
from fragmenta.tracing.trace import trace

SMALL = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=10**9)
ENGINES = (("local", False, Cluster(("cpu:0",))),)


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
    (path,) = (no_profile / "fragmenta" / "profiles").glob("*.json")
    assert json.loads(path.read_text())["notes"]
    monkeypatch.setattr(search, "measure_units", None)
    assert decide(question()) == first
    with pytest.raises(TypeError):  # another program has to be measured
        decide(question(dataclasses.replace(SMALL, hidden=(16,))))
    assert decide(question(dataclasses.replace(SMALL, learning_rate=1e-4))) == first


def test_a_damaged_profile_is_an_empty_one(no_profile: Path) -> None:
    decide(question())
    (path,) = (no_profile / "fragmenta" / "profiles").glob("*.json")
    path.write_text(path.read_text()[:-40])
    assert decide(question()).steps_per_second is not None
    assert json.loads(path.read_text())["notes"]


@pytest.mark.parametrize("content", ["[]", "null", "5", '{"schema": 2, "notes": null, "units": {}}', '{"schema": 2}'])
def test_a_profile_of_another_shape_is_an_empty_one(no_profile: Path, content: str) -> None:
    path = no_profile / "profile.json"
    path.write_text(content)
    profile = Profile(path)
    assert (profile.notes, profile.units) == ({}, {})
    profile.notes["a"] = 1
    profile.keep()
    assert Profile(path).notes == {"a": 1}


def test_what_two_runs_at_once_find_is_all_kept(no_profile: Path) -> None:
    path = no_profile / "profile.json"
    one, two = Profile(path), Profile(path)
    one.notes["a"] = [1]
    two.notes["b"] = [2]
    one.keep()
    two.keep()
    assert Profile(path).notes == {"a": [1], "b": [2]}
    one.keep()  # what it did not change since is not what it read
    assert Profile(path).notes == {"a": [1], "b": [2]}


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


def thirds(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """A distribution policy of a user's: acting, stepping and learning apart."""
    return [Fragment(stage, (stage,), cluster.devices[:1]) for stage in ("act", "step", "learn")]


def test_a_policy_of_the_users_is_compared_and_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SYNCHRONOUS", ())  # so that theirs is the only one
    algorithm = dataclasses.replace(SMALL, total_steps=320)
    options = RunOptions(replan=True, merge=False)
    chosen = train(algorithm, "CartPole-v1", policy=("auto", thirds), progress=False, options=options)
    assert chosen.summary["policy"] == "thirds"
    expected = train(algorithm, "CartPole-v1", policy="fused", progress=False)
    for ours, plain in zip(jax.tree.leaves(chosen.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(plain), rtol=1e-5, atol=1e-6)


def test_what_was_measured_with_a_policy_of_the_users_is_remembered_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SYNCHRONOUS", ())
    asked = question(user_policies=(thirds,), merge=False)
    assert decide(asked).policy is thirds
    monkeypatch.setattr(search, "measure_units", None)
    assert decide(asked).policy is thirds


def of_devices(count: int) -> Any:
    """A distribution policy of a user's, made by a function."""

    def devices(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
        return [Fragment(stage, (stage,), cluster.devices[i % count :][:1]) for i, stage in enumerate(stages)]

    return devices


def test_policies_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SYNCHRONOUS", ())
    one, two = of_devices(1), of_devices(2)
    monkeypatch.setattr(auto, "search", lambda predict, options, seconds: [prediction_of(x) for x in options])
    for best in (one, two):

        def prediction_of(option: Any, best: Any = best) -> Any:
            return SimpleNamespace(
                candidate=option, steps_per_second=1e3 + 1e3 * (option.policy is best), is_estimate=False
            )

        asked = question(dataclasses.replace(SMALL, num_envs=8 if best is one else 16), user_policies=(one, two))
        assert decide(dataclasses.replace(asked, merge=False)).policy is best


def test_environments_of_other_arguments_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def about(ends: int) -> Question:
        env = make("host_envs:Counter", EnvOptions(env_args={"ends": ends}))
        default = Decision("single_learner_coarse", "local", Cluster(("cpu:0",), 1))
        return question(env=env, graph=trace(SMALL, env), default=default, devices=("cpu:0",), engine="local")

    assert decide(about(10)).steps_per_second is not None
    monkeypatch.setattr(search, "measure_units", None)
    assert decide(about(10)).steps_per_second is not None
    with pytest.raises(TypeError):
        decide(about(20))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("auto,fussed", "unknown distribution policy 'fussed': did you mean 'fused'"),
        ("auto,single_learner_async", "'single_learner_async' acts with older parameters, which changes the result"),
        ("auto,nowhere:halves", "cannot load distribution policy 'nowhere:halves'"),
        ("auto,replay", "replay"),
        ("fused,central", "policy is 'fused, central': name one distribution policy, or auto and others"),
        (("auto", lambda stages, cluster: "none"), "must return a list of Fragment"),
        (("auto", lambda stages, cluster: None), "must return a list of Fragment, got None"),
        ("auto,", "policy is 'auto,': a name is missing beside a comma"),
    ],
)
def test_policies_that_cannot_be_compared_are_one_line(policy: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        train(SMALL, "CartPole-v1", policy=policy, progress=False)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_several_seeds_are_one_program_without_a_comparison() -> None:
    with pytest.raises(ConfigError, match="seeds is 2, which only fused can train"):
        train(SMALL, "CartPole-v1", policy=("auto", thirds), seeds=2, progress=False)


def test_what_was_run_says_more_than_what_was_predicted() -> None:
    asked = question()
    decide(asked)
    profile = profile_here(this_machine())
    space = Space(("fused", "single_learner_coarse"), (("local", False, Cluster(asked.devices)),), (1,))
    options = list(candidates(asked.algorithm, asked.env, asked.graph, space))
    predict = predictor(asked.algorithm, asked.env, asked.graph, profile)
    assert all(predict.measure(option, math.inf) for option in options)
    predictions = [predict.predict(option) for option in options]
    coarse = next(p for p in predictions if p.candidate.name == "single_learner_coarse")
    auto.remember(asked, predictions, {id(coarse.candidate): 123.0}, profile)
    decision = decide(asked)
    assert (decision.policy, decision.steps_per_second) == ("single_learner_coarse", 123.0)
    assert "single_learner_coarse x1 over 2 devices, measured 123 steps/s" in decision.reason
    auto.remember(asked, predictions, {}, profile)
    assert decide(asked) == decision, "a later comparison without runs keeps what was measured"


def test_a_plan_that_the_user_chose_is_not_changed() -> None:
    with pytest.raises(ConfigError, match="replan changes plans that the planner chose"):
        train(SMALL, "CartPole-v1", policy="fused", progress=False, options=RunOptions(replan=True))
