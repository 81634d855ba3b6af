"""Random small loops under random placements equal the plain program."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fragmenta import Algorithm, Environment, Fragment, make, stage
from helpers import assert_same, cpu_cluster, plain, planned, run_plan

STAGES = ("red", "green", "blue", "grey")


@dataclasses.dataclass(frozen=True)
class RandomLoop(Algorithm):
    """A loop from a recipe: each entry applies a stage (or glue) to two earlier values."""

    recipe: tuple[tuple[str, int, int], ...] = ()
    inner: tuple[tuple[str, int, int], ...] = ()
    length: int = 2

    def init(self, env: Environment, key: jax.Array) -> dict[str, jax.Array]:
        rows = jnp.arange(self.num_envs, dtype=jnp.float32)
        return {"a": rows / 7, "b": jnp.ones(3), "c": jnp.zeros((), jnp.int32), "d": rows[:, None] * jnp.ones(2)}

    def params(self, state: dict[str, jax.Array]) -> jax.Array:
        return state["b"]

    @stage
    def red(self, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x) + 0.5 * jnp.tanh(y), jnp.sin(x * y)

    @stage
    def green(self, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.cos(x - y), x

    @stage
    def blue(self, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(x + y), jnp.cos(y)

    @stage
    def grey(self, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return 0.1 * x, jnp.tanh(x + y)

    def _follow(self, recipe: tuple[tuple[str, int, int], ...], values: list[jax.Array]) -> list[jax.Array]:
        for kind, i, j in recipe:
            x, y = values[i % len(values)], values[j % len(values)]
            values = values + ([x * 0.5 + y] if kind == "glue" else list(getattr(self, kind)(x, y)))
        return values

    def iterate(self, env: Environment, state: dict[str, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
        def body(carry: tuple[jax.Array, ...], time: jax.Array) -> Any:
            values = self._follow(self.inner, [*carry, state["a"] * time])
            return (values[-1], values[-2]), values[len(values) // 2]

        values = self._follow(self.recipe, [state["a"], jnp.sum(state["d"], axis=1)])
        times = jnp.arange(self.length, dtype=jnp.float32)
        carry, stacked = jax.lax.scan(body, (values[-1], values[0]), times)
        values = self._follow(self.recipe[:2], [*carry, *values, jnp.sum(stacked, axis=0)])
        middle = jnp.mean(values[-1])
        state = {
            "a": jnp.tanh(values[-1]),
            "b": state["b"] * 0.9 + middle,
            "c": state["c"] + 1,
            "d": state["d"] * 0.9 + carry[0][:, None],
        }
        return state, {"middle": middle, "count": state["c"]}


steps = st.tuples(st.sampled_from((*STAGES, "glue")), st.integers(0, 9), st.integers(0, 9))
recipes = st.lists(steps, min_size=1, max_size=4).map(tuple)


@pytest.mark.parametrize("examples", [8, pytest.param(40, marks=pytest.mark.full)])
def test_random_placements_of_random_loops(examples: int) -> None:
    # No shrinking: an example takes a second to compile, and a failure prints its recipe anyway.
    settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )(check_random_placement)()


@given(recipes, recipes, st.lists(st.integers(0, 2), min_size=4, max_size=4), st.booleans())
def check_random_placement(recipe: tuple[Any, ...], inner: tuple[Any, ...], homes: list[int], replicate: bool) -> None:
    """A random loop under a random placement equals the plain program."""
    algorithm, env = RandomLoop(num_envs=4, recipe=recipe, inner=inner), make("ProbeConstant")

    def policy(stages: tuple[str, ...], cluster: Any) -> list[Fragment]:
        groups: dict[int, list[str]] = {}
        for name in stages:
            groups.setdefault(homes[STAGES.index(name)], []).append(name)
        return [
            Fragment(
                f"part{home}",
                tuple(names),
                (f"cpu:{home}",),
                replicas=2 if replicate and home == 0 else 1,
                axis="envs",
            )
            for home, names in groups.items()
        ]

    if not {kind for kind, _, _ in recipe + inner} - {"glue"}:
        return  # a loop without stages has nothing to place
    plan = planned(algorithm, env, policy, cpu_cluster(3, 1), merge=False)
    state, metrics = run_plan(plan, algorithm, env, 3)
    expected_state, expected_metrics = plain(algorithm, env, 3)
    assert_same(expected_state, state, 1e-5)
    assert_same(expected_metrics, metrics, 1e-5)
