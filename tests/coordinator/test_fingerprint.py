"""Fingerprints differ where what is computed does, and nowhere else."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import PPO, Algorithm, Cluster, ConfigError, Environment, Fragment, make, project, stage, trace
from fragmenta.coordinator.fingerprint import fingerprint
from two_versions import TwoVersions


def alone(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    return [Fragment("all", stages, ("cpu:0",))]


def of(algorithm: Algorithm) -> str:
    env = make("CartPole-v1")
    plan = project(trace(algorithm, env), alone, Cluster(("cpu:0",)))
    return fingerprint(plan, algorithm, env)


@dataclasses.dataclass(frozen=True)
class Computes(Algorithm):
    """Learns by whatever function it is given."""

    learn_by: Callable[[jax.Array], jax.Array] = jnp.sin

    def init(self, env: Environment, key: jax.Array) -> jax.Array:
        return jnp.zeros(self.num_envs)

    def params(self, state: jax.Array) -> jax.Array:
        return state

    @stage
    def learn(self, rows: jax.Array) -> jax.Array:
        return self.learn_by(rows)

    def iterate(self, env: Environment, state: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        return self.learn(state), {}


def on_the_host(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[jax.Array], jax.Array]:
    return lambda rows: jax.pure_callback(function, rows, rows)


TABLE = np.arange(4, dtype=np.float32)
PAIRS: dict[str, Any] = {
    "operation": (jnp.sin, jnp.cos),
    "number": (lambda rows: rows * 2, lambda rows: rows * 3),
    "table": (lambda rows: rows + TABLE, lambda rows: rows + TABLE[::-1]),
    "on the host": (on_the_host(lambda rows: rows + 1), on_the_host(lambda rows: rows + 2)),
    "inside a loop": tuple(
        (lambda rows, by=by: jax.lax.scan(lambda c, _: (c * by, None), rows, length=3)[0]) for by in (2.0, 3.0)
    ),
}


@pytest.mark.parametrize("which", PAIRS)
def test_what_is_computed_tells_them_apart(which: str) -> None:
    first, second = (of(Computes(num_envs=4, learn_by=function)) for function in PAIRS[which])
    assert first != second
    assert first == of(Computes(num_envs=4, learn_by=PAIRS[which][0]))


def test_all_processes_find_the_same() -> None:
    script = (
        "from test_fingerprint import *; print(of(PPO()), of(Computes(num_envs=4, learn_by=PAIRS['on the host'][0])))"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    found = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "12345"},
    )
    here = of(PPO()), of(Computes(num_envs=4, learn_by=PAIRS["on the host"][0]))
    assert found.stdout.split() == list(here)


def test_a_process_that_loads_another_version_of_the_algorithm_is_noticed() -> None:
    with pytest.raises(ConfigError, match=r"^all on .* makes something else of the same algorithm: its code or its"):
        fragmenta.train(TwoVersions(num_envs=4), "CartPole-v1", alone, "processes", total_steps=8)
