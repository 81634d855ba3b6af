"""Machines of many sizes, and what is predicted for them."""

import time

import pytest

import fragmenta
from fragmenta import ConfigError
from fragmenta.envs import make
from fragmenta.planner.comparing import compare_elsewhere, options_elsewhere, space_elsewhere
from fragmenta.planner.efficiency import Goal
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile
from fragmenta.planner.scaling import machines_with, scale, sizes
from fragmenta.policies.machine_files import read_machines
from fragmenta.policies.machines import Machines

SMALL = fragmenta.PPO(num_envs=16, horizon=8, hidden=(8,), epochs=1, minibatches=2)


def test_sizes_are_powers_of_two_and_both_ends() -> None:
    assert sizes("1..8") == (1, 2, 4, 8)
    assert sizes("3..20") == (3, 4, 8, 16, 20)


@pytest.mark.parametrize("text", ["", "4", "4..", "8..2", "0..4", "1..x", "1..9999999"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"as in 1\.\.4096"):
        sizes(text)


def test_machines_grow_by_their_last_kind_of_node() -> None:
    azure = read_machines("msrl-azure")
    assert [len(node.devices) for node in machines_with(azure, 6).nodes] == [4, 2]
    grown = machines_with(azure, 100)
    assert len(grown.devices) == 100
    assert len({node.name for node in grown.nodes}) == 25
    assert grown.link == azure.link


def test_curves_begin_at_full_efficiency_and_lose_it() -> None:
    env = make("CartPole-v1")
    policies = ("fused", "multi_learner", "single_learner_coarse", "central_async")
    curves = scale(SMALL, env, read_machines("msrl-azure"), policies, (1, 4, 16), "weak")
    assert [curve.policy for curve in curves] == ["fused", "single_learner_coarse"], "the others: the same, or refused"
    for curve in curves:
        first, *_, last = curve.points
        assert curve.efficiency(first) == 1.0
        assert 0 < curve.efficiency(last) < 1.0
        assert last.envs == 16 * 16
        assert last.bottleneck
    strong = scale(SMALL, env, read_machines("msrl-azure"), ("fused",), (1, 16), "strong")
    assert [point.envs for point in strong[0].points] == [16, 16]


@pytest.mark.full
@pytest.mark.parametrize(("devices", "limit"), [(64, 2.0), (4096, 30.0)])
def test_planning_is_quick(devices: int, limit: float) -> None:
    """Twice the time that it takes alone, because other tests run at the same time."""
    env, machines = make("CartPole-v1"), machines_with(read_machines("msrl-azure"), devices)
    algorithm = fragmenta.PPO(num_envs=devices * 64)
    graph = fragmenta.trace(algorithm, "CartPole-v1")
    began = time.perf_counter()
    comparison = compared(algorithm, env, graph, machines)
    assert time.perf_counter() - began < 2 * limit
    assert comparison.chosen.candidate.keeps_result


def compared(algorithm, env, graph, machines: Machines):
    space = space_elsewhere(machines, algorithm.num_envs, None, (), ())
    predict = predictor(algorithm, env, graph, Profile(), machines)
    return compare_elsewhere(predict, options_elsewhere(predict, algorithm, env, graph, space), Goal(algorithm))
