"""Plans on virtual time with given costs, whose answers are known."""

from typing import Any

import pytest

import fragmenta
from fragmenta import Cluster
from fragmenta.planner.candidates import Candidate, candidate_of
from fragmenta.planner.shortening import iteration_seconds
from fragmenta.planner.simulate import simulate
from given_costs import GivenCosts

DEVICES = tuple(f"gpu:{i}" for i in range(65))


def planned(policy: str, replicas: int, algorithm: Any = None, **settings: Any) -> Candidate:
    algorithm = algorithm or fragmenta.PPO(num_envs=64, horizon=4, hidden=(8,), epochs=1, minibatches=2)
    graph = fragmenta.trace(algorithm, "CartPole-v1")
    candidate = candidate_of(graph, policy, "ray", Cluster(DEVICES, replicas, apart=True, **settings), merge=False)
    assert candidate is not None
    return candidate


def seconds(candidate: Candidate, costs: GivenCosts, most: int = 8) -> float:
    return simulate(candidate.plan, candidate.schedules, costs, most).seconds


def test_fragments_that_wait_for_each_other_take_the_sum() -> None:
    assert seconds(planned("single_learner_coarse", 2), GivenCosts({"actor": 3.0, "learner": 2.0})) == pytest.approx(5)


def test_fragments_one_behind_take_the_longer() -> None:
    lagging = planned("single_learner_coarse", 2, lag=1)
    assert seconds(lagging, GivenCosts({"actor": 3.0, "learner": 2.0})) == pytest.approx(3.0)
    assert seconds(lagging, GivenCosts({"actor": 1.0, "learner": 2.0})) == pytest.approx(2.0)


def test_every_part_of_a_gather_is_received() -> None:
    """The learner takes the parts of each actor one after the other."""
    costs = {"actor": 1.0, "learner": 1.0}
    few, more = (planned("single_learner_coarse", replicas) for replicas in (2, 4))
    gathered = sum(i.operator.value in ("Gather", "Reduce") for i in few.plan.interfaces)
    assert gathered
    grown = seconds(more, GivenCosts(costs, receive=0.01)) - seconds(few, GivenCosts(costs, receive=0.01))
    assert grown == pytest.approx(2 * gathered * 0.01)


def test_a_loop_across_fragments_pays_the_latency_of_every_round() -> None:
    costs = {"env": 0.0, "learner": 0.0}
    fine = planned("single_learner_fine", 2)
    assert seconds(fine, GivenCosts(costs, latency=1.0)) == pytest.approx(2 * 4 + 1, abs=1.01)


def test_replicas_on_one_core_take_turns() -> None:
    costs = {"actor": 1.0, "learner": 2.0}
    candidate = planned("single_learner_coarse", 4)
    on_one_core = GivenCosts(costs, shares_node=True, capacities={"core": 1.0})
    assert seconds(candidate, on_one_core) == pytest.approx(4 * 1.0 + 2.0)


def test_an_asynchronous_learner_is_as_fast_as_it_or_its_actors() -> None:
    """An iteration is the arrival of one actor's trajectory."""
    algorithm = fragmenta.IMPALA(num_envs=64, hidden=(8,))
    candidate = planned("single_learner_async", 4, algorithm)
    slow_actors, slow_learner = ({"actor": 8.0, "learner": 1.0}, {"actor": 1.0, "learner": 3.0})
    assert seconds(candidate, GivenCosts(slow_actors)) == pytest.approx(2.0, rel=0.05)
    assert seconds(candidate, GivenCosts(slow_learner)) == pytest.approx(3.0, rel=0.05)
    behind = simulate(candidate.plan, candidate.schedules, GivenCosts(slow_learner)).lag
    assert behind is not None
    assert behind >= 3.0, "the others' trajectories wait"


CASES = {
    "coarse": ("single_learner_coarse", {"actor": 1e-3, "learner": 1e-3}),
    "fine": ("single_learner_fine", {"env": 1e-4, "learner": 1e-4}),
    "environments": ("environments", {"env": 1e-4, "agents": 1e-4}),
}


@pytest.mark.parametrize("shares_node", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_some_replicas_stand_for_all(name: str, shares_node: bool) -> None:
    policy, costs = CASES[name]
    candidate = planned(policy, 16)
    given = GivenCosts(costs, 1e-5, 1e-5, 1e-4, 1e7, shares_node, {"core": 4.0, **_networks()})
    everyone = seconds(candidate, given, most=16)
    assert seconds(candidate, given) == pytest.approx(everyone, rel=0.03)
    assert iteration_seconds(candidate.plan, candidate.schedules, given, 16) == pytest.approx(everyone, rel=0.01)


def test_some_free_running_replicas_stand_for_all() -> None:
    algorithm = fragmenta.IMPALA(num_envs=64, hidden=(8,))
    for costs in ({"actor": 1e-2, "learner": 1e-3}, {"actor": 1e-1, "learner": 1e-3}):
        arrivals = [
            seconds(planned("single_learner_async", replicas, algorithm), GivenCosts(costs)) for replicas in (32, 64)
        ]
        expected = [max(costs["learner"], costs["actor"] / replicas) for replicas in (32, 64)]
        assert arrivals == pytest.approx(expected, rel=0.05)


def _networks() -> dict[str, float]:
    return {f"{way} {device}": 1.0 for device in DEVICES for way in ("out of", "into")}
