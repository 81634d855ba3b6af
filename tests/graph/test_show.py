"""Listings and drawings of plans."""

import re
from typing import Any

import pytest

import pictures
from fragmenta import A2C, IMPALA, MAPPO, PPO, Cluster, project, trace
from fragmenta.graph import Operator
from fragmenta.graph.show import to_mermaid
from loops.ppo import TrainStatePPO

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
def test_keys_are_carried_by_the_fragments_that_use_them_and_never_sent(policy: str, holders: list[str]) -> None:
    plan = project(GRAPH, policy, TWO)
    assert not [i for i in plan.interfaces if "key" in i.name]
    keys = GRAPH.state_names.index("keys")
    assert [program.fragment.name for program in plan.programs if keys in program.state] == holders


@pytest.mark.parametrize(
    ("policy", "operators"),
    [
        ("single_learner_coarse", {Operator.BROADCAST, Operator.GATHER, Operator.REDUCE, Operator.SEND}),
        ("single_learner_fine", {Operator.SCATTER, Operator.GATHER, Operator.REDUCE, Operator.SEND}),
    ],
)
def test_operators_are_derived(policy: str, operators: set[Operator]) -> None:
    plan = project(GRAPH, policy, TWO)
    assert {interface.operator for interface in plan.interfaces} == operators
    reduced = {i.name for i in plan.interfaces if i.operator == Operator.REDUCE}
    assert reduced == {"finished_episodes", "finished_returns", "finished_lengths"}
    alike = {i.name for i in plan.interfaces if i.operator == Operator.SEND}
    assert alike == {"reward"}, "CartPole's is the same for all environments, so one replica sends it"


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
    assert mermaid.count("-->") == len({(i.producer, i.consumer, i.operator) for i in plan.interfaces})


SIX = Cluster(tuple(f"cpu:{i}" for i in range(6)), replicas=2)
TEAM = MAPPO(num_envs=6, horizon=4, minibatches=2, epochs=1, hidden=(8,))


@pytest.mark.parametrize(
    ("algorithm", "env", "policy", "cluster", "operators"),
    [
        (PPO(num_envs=8), "CartPole-v1", "single_learner_coarse", Cluster(("cpu:0", "cpu:1")), ["Send/Recv"]),
        (PPO(num_envs=8), "CartPole-v1", "single_learner_coarse", SIX, ["Broadcast", "Gather", "Reduce"]),
        (PPO(num_envs=8), "CartPole-v1", "single_learner_fine", SIX, ["Scatter", "Gather"]),
        (A2C(num_envs=8, normalize_advantages=False), "CartPole-v1", "central", SIX, ["Broadcast", "Reduce"]),
        (PPO(num_envs=8), "CartPole-v1", "multi_learner", SIX, ["AllReduce"]),
        (TEAM, "ProbeTeam", "environments", SIX, ["AllGather", "AllReduce", "Gather"]),
        (IMPALA(num_envs=8), "CartPole-v1", "single_learner_async", SIX, ["Broadcast, latest", "Gather, any"]),
    ],
)
def test_every_operator_is_in_a_listing(algorithm: Any, env: str, policy: str, cluster: Any, operators: Any) -> None:
    """`tests/test_equivalence.py` and `tests/engines` run all of these."""
    text = str(project(trace(algorithm, env), policy, cluster, merge=False))
    for operator in operators:
        assert f"[{operator}, " in text, text


def test_a_collective_counts_every_time_and_every_replica() -> None:
    plan = project(trace(PPO(num_envs=8, hidden=(8,)), "CartPole-v1"), "multi_learner", SIX, merge=False)
    (sums,) = plan["learner"].collectives()
    gradient = (4 * 8 + 8 + 8 * 2 + 2) + (4 * 8 + 8 + 8 * 1 + 1)
    per_update = gradient + 2  # the two moments of the advantages
    per_iteration = 4 + 4 + 3  # four losses, four sums of the value fit, three episode counts
    assert (sums.operator, sums.times) == (Operator.ALL_REDUCE, 32)
    assert sums.bytes_per_iteration == 2 * 4 * (32 * per_update + per_iteration)


def test_the_plan_says_what_replicas_cost() -> None:
    text = str(project(GRAPH, "fused", SIX, merge=False))
    assert "2 replicas as one program, gathering nothing, " in text
    assert "cost of replicas" not in text
    costly = str(project(trace(TrainStatePPO(), "CartPole-v1"), "fused", SIX, merge=False))
    assert "every replica computes all of learn" in costly
    assert re.search(
        r"cost of replicas: all: gathers [\d.]+ KB per iteration for gather \(ppo.py:\d+\); instead, ", costly
    )


@pytest.mark.parametrize("picture", sorted(pictures.PICTURES))
def test_pictures_in_the_documentation_are_current(picture: str) -> None:
    """`python docs/pictures.py` draws them anew."""
    assert (pictures.IMAGES / f"{picture}.svg").read_text() == pictures.picture(picture)
    page = (pictures.IMAGES.parent / "policies.md").read_text()
    assert f"(images/{picture}.svg)" in page.partition(f"\n## {picture}\n")[2].partition("\n## ")[0]


def test_the_listing_in_the_documentation_is_current() -> None:
    plan = project(trace(PPO(), "CartPole-v1"), "single_learner_fine", Cluster(("cpu:0", "cpu:1")))
    assert f"```text\n{plan}\n```" in (pictures.IMAGES.parent / "policies.md").read_text()


def test_the_picture_of_the_readme_is_current() -> None:
    assert (pictures.IMAGES / "overview.svg").read_text() == pictures.overview()
