"""What tests of engines with processes need: a set-up to start one from, and a run of it."""

import dataclasses
from typing import Any

import jax

from fragmenta import Algorithm, Environment
from fragmenta.engines import ENGINES, EngineOptions, Setup
from fragmenta.graph.check import check_plan
from helpers import cpu_cluster, initial_state, planned


def apart(
    algorithm: Algorithm, env: Environment, policy: Any, replicas: int, options: EngineOptions | None = None
) -> Setup:
    """Every replica of every fragment in a process of its own."""
    cluster = dataclasses.replace(cpu_cluster(8, replicas), apart=True)
    plan = planned(algorithm, env, policy, cluster, merge=False)
    check_plan(plan)
    return Setup(plan, algorithm, env, policy, cluster, False, deadline=60.0, options=options or EngineOptions())


def run_apart(setup: Setup, engine: str, iterations: int) -> tuple[Any, list[dict[str, Any]]]:
    """The state and the metrics after so many iterations."""
    with ENGINES[engine](setup) as running:
        leaves, structure = jax.tree.flatten(initial_state(setup.algorithm, running.env))
        running.begin(leaves)
        reports = [jax.device_get(report.metrics) for report in running.run(iterations)]
        running.finish()
        state = jax.tree.unflatten(structure, running.state())
    return state, [{name: r[i] for i, name in enumerate(setup.plan.graph.metric_names)} for r in reports]
