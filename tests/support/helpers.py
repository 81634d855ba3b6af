"""Test helpers: run the plain program, run any plan, and compare the results."""

import os
import signal
from typing import Any

import jax
import numpy as np

from fragmenta import Algorithm, Cluster, Environment, Plan, project, trace
from fragmenta.engines import LocalEngine
from fragmenta.progress.watching import Progress
from fragmenta.tracing.iteration import iteration


def cpu_cluster(devices: int, replicas: int) -> Cluster:
    return Cluster(tuple(f"cpu:{i}" for i in range(devices)), replicas)


def initial_state(algorithm: Algorithm, env: Environment, seed: int = 0) -> Any:
    return jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(seed))


def plain(algorithm: Algorithm, env: Environment, iterations: int) -> tuple[Any, list[dict[str, Any]]]:
    """The unsplit program: `jax.jit(iterate)` in a loop."""
    iterate = jax.jit(iteration(algorithm, env))
    state, metrics = initial_state(algorithm, env), []
    for _ in range(iterations):
        state, outputs = iterate(state)
        metrics.append(jax.device_get(outputs))
    return state, metrics


def run_plan(
    plan: Plan, algorithm: Algorithm, env: Environment, iterations: int, deadline: float = 60.0
) -> tuple[Any, list[dict[str, Any]]]:
    """The same computation, split into fragments by a plan."""
    leaves, structure = jax.tree.flatten(initial_state(algorithm, env))
    with LocalEngine(plan, deadline) as engine:
        engine.begin(leaves)
        reports = [jax.device_get(report.metrics) for report in engine.run(iterations)]
        engine.finish()
        state = jax.tree.unflatten(structure, engine.state())
    return state, [{name: r[i] for i, name in enumerate(plan.graph.metric_names)} for r in reports]


def planned(algorithm: Algorithm, env: Environment, policy: Any, cluster: Cluster, merge: bool) -> Plan:
    return project(trace(algorithm, env), policy, cluster, merge)


class StopAt:
    """A watcher that interrupts the run like Ctrl-C once it reaches an iteration."""

    def __init__(self, iteration: int) -> None:
        self._iteration = iteration

    def planned(self, *_: Any) -> None: ...
    def placed(self, *_: Any) -> None: ...
    def remarked(self, text: str) -> None: ...
    def compiled(self, seconds: float) -> None: ...

    def progressed(self, progress: Progress) -> None:
        if progress.iteration == self._iteration:
            os.kill(os.getpid(), signal.SIGINT)


def raw(leaf: Any) -> np.ndarray:
    is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def assert_same(expected: Any, actual: Any, relative: float, floor: float = 1e-2) -> None:
    """Assert that leaves are equal, with a tolerance relative to each leaf's largest entry or to `floor`; 0 is bitwise.

    The floor is for parameters near zero: a sum of cancelling updates of about 0.01 has their rounding error.
    """
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(actual), strict=True):
        a, b = raw(a), raw(b)
        name = jax.tree_util.keystr(path)
        if relative == 0 or not np.issubdtype(a.dtype, np.floating):
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            np.testing.assert_allclose(a, b, rtol=0, atol=relative * max(np.abs(a).max(), floor), err_msg=name)
