"""How a run that is slower than predicted looks for another plan."""

import dataclasses
from typing import Any

import pytest

from fragmenta import PPO, Cluster, RunOptions, make
from fragmenta.planner import predicting, search
from fragmenta.planner.auto import Decision
from fragmenta.planner.costs import Cost
from fragmenta.training import planning, rechoosing
from fragmenta.training.planning import Request, plan_run, question_of
from fragmenta.training.rechoosing import Rechoosing

SMALL = PPO(num_envs=4, horizon=8, hidden=(8,), epochs=1, minibatches=2, total_steps=320)


def planned(policy: str) -> Any:
    cluster = Cluster(("cpu:0", "cpu:1"), 1)
    return plan_run(
        Request(SMALL, make("CartPole-v1"), "CartPole-v1", {}, policy, "local", cluster, 0, 1, RunOptions())
    )


def test_a_faster_plan_is_that_of_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    better = Decision("single_learner_coarse", "local", Cluster(("cpu:0", "cpu:1"), 2), "faster", 123.0)
    monkeypatch.setattr(rechoosing, "faster", lambda question, current: better)
    run = planned("fused")
    changed = Rechoosing()(run, 10.0)
    assert changed is not None
    assert (changed.plan.policy, changed.cluster.replicas, changed.predicted) == ("single_learner_coarse", 2, 123.0)
    assert changed.request.algorithm == run.request.algorithm


def test_a_run_that_may_change_its_plan_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "decide", lambda question: question.default)
    options = RunOptions(replan=True)
    run = plan_run(Request(SMALL, make("CartPole-v1"), "CartPole-v1", {}, None, None, None, 0, 1, options))
    better = Decision("single_learner_coarse", "local", Cluster(("cpu:0", "cpu:1"), 2), "faster", 123.0)
    monkeypatch.setattr(rechoosing, "faster", lambda question, current: better)
    changed = Rechoosing()(run, 10.0)
    assert changed is not None
    assert (changed.plan.policy, changed.predicted) == ("single_learner_coarse", 123.0)
    assert changed.request.policy is None, "it may change again"


HOST = "gymnasium:CartPole-v1"


@pytest.mark.parametrize(("shares", "engine"), [((1.0, 1.0), None), ((0.2, 1.0), "local")])
def test_a_run_leaves_workers_that_are_pinned_to_a_core_that_others_take(
    shares: tuple[float, float], engine: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "available_cores", lambda: shares)
    monkeypatch.setattr(predicting, "stepping_cost", lambda _, count, lanes, __: Cost(1e-4 * count / lanes))
    costs = lambda units, *_: {unit.identity: Cost(1e-4) for unit in units}  # noqa: E731
    monkeypatch.setattr(search, "measure_units", costs)
    processes = Cluster(("cpu:0", "cpu:1"), 2)
    algorithm = dataclasses.replace(SMALL, num_envs=32)
    request = Request(
        algorithm, make(HOST), HOST, {}, "single_learner_coarse", "processes", processes, 0, 1, RunOptions()
    )
    run = dataclasses.replace(plan_run(request), engine_is_open=True)
    changed = Rechoosing()(run, 10.0)
    assert (changed and changed.engine) == engine
    assert question_of(dataclasses.replace(run, engine_is_open=False)).engine == "processes", (
        "what the user named stays"
    )


def test_after_a_vain_comparison_the_next_one_comes_later_and_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], []
    monkeypatch.setattr(rechoosing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(rechoosing, "faster", lambda question, current: asked.append(now[0]))
    choose, run = Rechoosing(), dataclasses.replace(planned("fused"))
    for second in range(400):
        now[0] = 100.0 + second
        assert choose(run, 10.0) is None
    first, second, third = asked[:3]
    assert second - first >= rechoosing.PATIENCE_SECONDS
    assert third - second >= 2 * rechoosing.PATIENCE_SECONDS
