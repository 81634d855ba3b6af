"""Fingerprints differ if and only if the computation differs."""

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


def fingerprint_of(algorithm: Algorithm) -> str:
    env = make("CartPole-v1")
    plan = project(trace(algorithm, env), alone, Cluster(("cpu:0",)))
    return fingerprint(plan, algorithm, env)


@dataclasses.dataclass(frozen=True)
class Computes(Algorithm):
    """Learns by a given function."""

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


@pytest.mark.parametrize("pair", PAIRS)
def test_different_computations_have_different_fingerprints(pair: str) -> None:
    first, second = (fingerprint_of(Computes(num_envs=4, learn_by=function)) for function in PAIRS[pair])
    assert first != second
    assert first == fingerprint_of(Computes(num_envs=4, learn_by=PAIRS[pair][0]))


@pytest.mark.full
def test_all_processes_compute_the_same_fingerprint() -> None:
    script = (
        "from test_fingerprint import *\n"
        "print(fingerprint_of(PPO()), fingerprint_of(Computes(num_envs=4, learn_by=PAIRS['on the host'][0])))"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    completed = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "12345"},
    )
    here = fingerprint_of(PPO()), fingerprint_of(Computes(num_envs=4, learn_by=PAIRS["on the host"][0]))
    assert completed.stdout.split() == list(here)


@pytest.mark.full
def test_a_process_that_loads_another_version_of_the_algorithm_is_detected() -> None:
    with pytest.raises(ConfigError, match=r"^all on .* builds a different plan: its code or its"):
        fragmenta.train(TwoVersions(num_envs=4), "CartPole-v1", alone, "processes", total_steps=8)
