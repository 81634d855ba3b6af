"""Loops whose carries come from outside, are swapped or forwarded, and loops without iterations, split in every way."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fragmenta import Algorithm, Environment, Fragment, make, stage
from helpers import assert_same, cpu_cluster, plain, planned, run_plan

KINDS = ("one from outside", "other from outside", "forwarded", "swapped", "no rounds", "state itself")
PLACES = list(itertools.product((0, 1), (0, 1)))
REPLICAS = [(1, 1), (2, 1), (1, 2), (2, 2)]
FEW = {("no rounds", (0, 1), (2, 2)), ("state itself", (0, 1), (2, 2)), ("one from outside", (0, 1), (2, 1))}


@dataclasses.dataclass(frozen=True)
class Carrying(Algorithm):
    num_envs: int = 8
    kind: str = KINDS[0]

    def init(self, env: Environment, key: jax.Array) -> dict[str, jax.Array]:
        return {"rows": jnp.arange(8.0) / 7, "three": jnp.ones(3)}

    def params(self, state: dict[str, jax.Array]) -> jax.Array:
        return state["three"]

    @stage
    def red(self, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x) + y, x

    @stage
    def blue(self, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(x + y), jnp.cos(y)

    def iterate(self, env: Environment, state: dict[str, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
        outside = state["rows"] * 0.5 + 1

        def body(carry: Any, time: jax.Array) -> Any:
            x, y = carry
            return {
                "one from outside": lambda: ((self.red(x, y)[0], outside), y),
                "other from outside": lambda: ((outside, self.red(x, y)[0]), x),
                "forwarded": lambda: ((self.red(x, y)[1], self.blue(y, outside)[0]), outside * time),
                "swapped": lambda: ((y, x), self.blue(*self.red(x, y))[0]),
                "no rounds": lambda: ((self.red(x, y)[0], self.blue(x, y)[0]), x),
                "state itself": lambda: ((state["rows"], self.blue(x, y)[0]), self.red(x, y)[0]),
            }[self.kind]()

        times = jnp.arange(0.0 if self.kind == "no rounds" else 3.0)
        (x, y), stacked = jax.lax.scan(body, (state["rows"], outside), times)
        x = self.red(x, y)[0] + self.blue(y, x)[1]
        after = {"rows": jnp.tanh(x + y), "three": state["three"] + x.mean()}
        return after, {"sum": x.mean() + stacked.sum()}


def cases() -> list[Any]:
    every = itertools.product(KINDS, PLACES, REPLICAS)
    return [pytest.param(*case, marks=() if case in FEW else pytest.mark.full) for case in every]


@pytest.mark.parametrize(("kind", "homes", "replicas"), cases())
def test_every_cut_of_a_loop(kind: str, homes: tuple[int, int], replicas: tuple[int, int]) -> None:
    def policy(stages: tuple[str, ...], cluster: Any) -> list[Fragment]:
        groups: dict[int, list[str]] = {}
        for name in stages:
            groups.setdefault(homes[("red", "blue").index(name)], []).append(name)
        return [
            Fragment(f"part{i}", tuple(names), (f"cpu:{2 * i}", f"cpu:{2 * i + 1}")[:count], count, axis="envs")
            for i, names in groups.items()
            for count in (replicas[i],)
        ]

    algorithm, env = Carrying(kind=kind), make("ProbeConstant")
    plan = planned(algorithm, env, policy, cpu_cluster(4, 1), merge=False)
    (state, metrics), expected = run_plan(plan, algorithm, env, 3), plain(algorithm, env, 3)
    assert_same(expected[0], state, 1e-5)
    assert_same(expected[1], metrics, 1e-5)
