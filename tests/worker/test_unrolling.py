"""Loops are unrolled where that is asked for, but not so far that large bodies take minutes to compile."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fragmenta import Algorithm, Environment, make, stage
from fragmenta.worker.optimize import UNROLLED, optimize
from fragmenta.worker.steps import segments
from helpers import cpu_cluster, planned


@dataclasses.dataclass(frozen=True)
class Rounds(Algorithm):
    """Adds up sines in a loop, `size` of them in every round."""

    size: int = 1

    def init(self, env: Environment, key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (self.num_envs,))

    def params(self, state: jax.Array) -> jax.Array:
        return state

    @stage
    def work(self, x: jax.Array) -> jax.Array:
        for _ in range(self.size):
            x = jnp.sin(x)
        return x

    def iterate(self, env: Environment, state: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return jax.lax.scan(lambda x, _: (self.work(x), None), state, length=64)[0], {}


@pytest.mark.parametrize(("size", "unroll"), [(10, 16), (UNROLLED // 4, 4), (UNROLLED, 1)])
def test_large_bodies_are_unrolled_less(size: int, unroll: int) -> None:
    plan = planned(Rounds(num_envs=4, size=size), make("CartPole-v1"), "fused", cpu_cluster(1, 1), merge=True)
    schedule = optimize(plan.programs[0], {"all": 1}, unroll=16)
    (segment,) = segments(schedule.steps)
    inputs = [jax.ShapeDtypeStruct(schedule.shapes[k].shape, schedule.shapes[k].dtype) for k in segment.inputs]
    assert _unrolls(jax.make_jaxpr(segment)(*inputs).jaxpr) == [unroll]


def _unrolls(jaxpr: Any) -> list[int]:
    return [equation.params["unroll"] for equation in jaxpr.eqns if equation.primitive.name == "scan"]
