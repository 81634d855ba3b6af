"""The central test on a Ray cluster: on three nodes, too, every placement equals the plain program."""

from collections.abc import Iterator
from typing import Any

import jax
import pytest

from fragmenta import Cluster, make, project, trace
from fragmenta.engines import ENGINES, EngineOptions, Setup
from helpers import assert_same, initial_state
from ray_nodes import Nodes
from test_equivalence import CASES, ITERATIONS, expected, policies_for


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    nodes.close()


def matrix() -> list[Any]:
    """Every algorithm under every synchronous distribution policy with one and two replicas."""
    return [
        pytest.param(
            case,
            policy,
            replicas,
            marks=pytest.mark.full,
            id=f"{case}-{policy}-{replicas}",
        )
        for case in CASES
        for policy in policies_for(case)
        for replicas in (1, 2)
    ]


@pytest.mark.parametrize(("case", "policy", "replicas"), matrix())
def test_every_policy_equals_the_plain_program(nodes: Nodes, case: str, policy: str, replicas: int) -> None:
    algorithm, env = CASES[case][0], make(CASES[case][1])
    # MAPPO's agents need a device each under `environments`.
    cluster = Cluster(tuple(f"cpu:{i}" for i in range(8)), replicas, apart=True)
    plan = project(trace(algorithm, env), policy, cluster, merge=False)
    options = EngineOptions(nodes.address, "spread", watchdog=60)
    setup = Setup(plan, algorithm, env, policy, cluster, merge=False, options=options)
    leaves, structure = jax.tree.flatten(initial_state(algorithm, env))
    with ENGINES["ray"](setup) as engine:
        engine.begin(leaves)
        reports = [report.metrics for report in engine.run(ITERATIONS)]
        state = jax.tree.unflatten(structure, engine.state())
    metrics = [{name: report[i] for i, name in enumerate(plan.graph.metric_names)} for report in reports]
    expected_state, expected_metrics = expected(case)
    assert_same(expected_state, state, 1e-5)
    # A loss can be a small difference of large terms, so its tolerance is relative to those.
    assert_same(expected_metrics, metrics, 1e-4, floor=0.1)
