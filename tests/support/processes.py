"""Helpers for tests of engines with processes: a setup to start from, and a run of it."""

import dataclasses
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from fragmenta import Algorithm, Environment
from fragmenta.engines import ENGINES, EngineOptions, IterationReport, ProcessLocation, Setup
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


class Run:
    """A running engine, and the current placement of its processes."""

    def __init__(self, setup: Setup, engine: str = "processes") -> None:
        self._engine = engine
        self.pids: dict[str, int] = {}
        self.placed_at: dict[str, float] = {}
        self.setup = dataclasses.replace(setup, placed=self._placed)

    def _placed(self, workers: Sequence[ProcessLocation]) -> None:
        for worker in workers:
            self.pids[worker.worker] = worker.pid
            self.placed_at[worker.worker] = time.monotonic()

    def send(self, worker: str, number: signal.Signals) -> None:
        os.kill(self.pids[worker], number)

    def reports(self, iterations: int) -> Iterator[IterationReport]:
        """The reports of all iterations; afterwards `state` is the final state, and `replaced` how many were lost."""
        with ENGINES[self._engine](self.setup) as engine:
            leaves, structure = jax.tree.flatten(initial_state(self.setup.algorithm, engine.env))
            engine.begin(leaves)
            yield from engine.run(iterations)
            engine.finish()
            self.replaced = engine.replaced
            self.state = jax.tree.unflatten(structure, engine.state())
