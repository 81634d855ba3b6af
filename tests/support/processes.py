"""Helpers for tests of engines with processes: a setup to start from, and a run of it."""

import dataclasses
from typing import Any

import jax

from fragmenta import Algorithm, Environment
from fragmenta.engines import ENGINES, EngineOptions, Setup
from helpers import cpu_cluster, initial_state, planned


def apart(
    algorithm: Algorithm, env: Environment, policy: Any, replicas: int, options: EngineOptions | None = None
) -> Setup:
    """A setup with a separate process for every replica of every fragment."""
    cluster = dataclasses.replace(cpu_cluster(8, replicas), apart=True)
    plan = planned(algorithm, env, policy, cluster, merge=False)
    return Setup(plan, algorithm, env, policy, cluster, False, deadline=60.0, options=options or EngineOptions())


def run_apart(setup: Setup, engine: str, iterations: int) -> tuple[Any, list[dict[str, Any]]]:
    """The final state, and the metrics of each iteration."""
    with ENGINES[engine](setup) as running:
        leaves, structure = jax.tree.flatten(initial_state(setup.algorithm, running.env))
        running.begin(leaves)
        reports = [jax.device_get(report.metrics) for report in running.run(iterations)]
        running.finish()
        state = jax.tree.unflatten(structure, running.state())
    return state, [{name: r[i] for i, name in enumerate(setup.plan.graph.metric_names)} for r in reports]
