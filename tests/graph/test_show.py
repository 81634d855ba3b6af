"""Listings and drawings: what a person reads."""

import pytest

from fragmenta import PPO, Cluster, project, trace
from fragmenta.graph import Operator
from fragmenta.graph.show import to_dot, to_mermaid

TWO = Cluster(("cpu:0", "cpu:1", "cpu:2"), replicas=2)
GRAPH = trace(PPO(num_envs=8), "CartPole-v1")


def test_print_graph() -> None:
    text = str(GRAPH)
    assert "8 environments" in text
    assert "loop x128:\n    act -> action i32[8]" in text
    assert "learn (holds gradient, apply)" in text


def test_fine_listing_has_the_exchange_inside_the_loop() -> None:
    text = str(project(GRAPH, "single_learner_fine", Cluster(("cpu:0", "cpu:1")), merge=True))
    assert "env      loop x128:  send observation f32[8,4] -> learner  [Send/Recv, 16.4 KB]" in text
    assert "recv action i32[8] <- learner" in text
    assert "send reward f32[128,8] -> learner  [Send/Recv, 4.1 KB]" in text
    learner = str(project(GRAPH, "single_learner_fine", Cluster(("cpu:0", "cpu:1")))["learner"])
    assert learner.index("act") < learner.index("recv reward") < learner.index("learn\n")
    assert " observation f32[128,8,4]" not in text, "the learner has every observation already and stacks them itself"


def test_coarse_sends_nothing_inside_the_loop() -> None:
    program = project(GRAPH, "single_learner_coarse", Cluster(("cpu:0", "cpu:1")))["actor"]
    inside = str(program).split("loop x128:")[1].split("send")[0]
    assert inside.split() == ["act", "step"]
    assert "value" not in str(program), "the actor needs the policy's parameters only"


@pytest.mark.parametrize(
    ("policy", "holders"), [("single_learner_coarse", ["actor", "learner"]), ("single_learner_fine", ["learner"])]
)
def test_keys_are_carried_by_whoever_needs_them_and_never_sent(policy: str, holders: list[str]) -> None:
    plan = project(GRAPH, policy, TWO)
    assert not [i for i in plan.interfaces if "key" in i.name]
    keys = GRAPH.state_names.index("keys")
    assert [program.fragment.name for program in plan.programs if keys in program.state] == holders


@pytest.mark.parametrize(
    ("policy", "operators"),
    [
        ("single_learner_coarse", {Operator.BROADCAST, Operator.GATHER, Operator.REDUCE}),
        ("single_learner_fine", {Operator.SCATTER, Operator.GATHER, Operator.REDUCE}),
    ],
)
def test_operators_are_derived(policy: str, operators: set[Operator]) -> None:
    plan = project(GRAPH, policy, TWO)
    assert {interface.operator for interface in plan.interfaces} == operators
    reduced = {i.name for i in plan.interfaces if i.operator == Operator.REDUCE}
    assert reduced == {"episodes", "returns", "lengths"}


def test_one_replica_sends_and_receives() -> None:
    plan = project(GRAPH, "single_learner_coarse", Cluster(("cpu:0", "cpu:1")))
    assert {interface.operator for interface in plan.interfaces} == {Operator.SEND}
    assert plan.interfaces[-1].bytes_per_iteration == 128 * 8 * 4


def test_drawings() -> None:
    plan = project(GRAPH, "single_learner_coarse", TWO)
    mermaid = to_mermaid(plan)
    assert mermaid.startswith("flowchart LR\n")
    assert 'actor["actor x2<br/>act, step<br/>cpu:1, cpu:2"]' in mermaid
    assert "Gather: observation, action" in mermaid
    assert to_dot(plan).count("->") == mermaid.count("-->")
