"""The random numbers of a Python loop are drawn before the loop, with the same values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import PPO, EnvOptions, make
from fragmenta.graph import Value
from fragmenta.tracing.flat import flatten
from fragmenta.worker import ahead
from fragmenta.worker.ahead import draw_ahead
from fragmenta.worker.optimize import optimize
from fragmenta.worker.steps import Key, Operation, Rounds, Segment
from helpers import cpu_cluster, planned

KEYS, COUNTER, ROWS, SCALE, OUT = 1, ("round", 0), 2, 3, 4
LENGTH = 5
SHAPES: dict[Key, Value] = {
    KEYS: Value(KEYS, (3,), jax.random.key(0).dtype),
    COUNTER: Value(-1, (), jnp.dtype("int32")),
    ROWS: Value(ROWS, (3,), jnp.dtype("float32")),
    SCALE: Value(SCALE, (3,), jnp.dtype("float32")),
    OUT: Value(OUT, (3,), jnp.dtype("float32")),
}


def noisy(keys: jax.Array, i: jax.Array, rows: jax.Array, scale: jax.Array) -> list[jax.Array]:
    """Parameters (`scale`) do not change between rounds either, but only random bits are drawn ahead."""
    step_keys = jax.vmap(lambda key: jax.random.fold_in(key, i))(keys)
    return [rows * 2 + jnp.exp(scale) * jax.jit(jax.vmap(jax.random.normal))(step_keys)]


def depends(keys: jax.Array, i: jax.Array, rows: jax.Array, scale: jax.Array) -> list[jax.Array]:
    """The random numbers depend on the rows, so they cannot be drawn ahead."""
    step_keys = jax.vmap(lambda key, x: jax.random.fold_in(key, i + x.astype(int)))(keys, rows)
    return [jax.vmap(jax.random.normal)(step_keys)]


def calls(keys: jax.Array, i: jax.Array, rows: jax.Array, scale: jax.Array) -> list[jax.Array]:
    drawn = jax.vmap(lambda key: jax.random.bits(jax.random.fold_in(key, i)))(keys)
    return [rows + jax.pure_callback(np.float32, jax.ShapeDtypeStruct((3,), jnp.float32), drawn >> 8)]


def other_keys(keys: jax.Array, i: jax.Array, rows: jax.Array, scale: jax.Array) -> list[jax.Array]:
    """Keys of this type give different numbers in a batch than one by one."""
    return [rows + jax.random.normal(jax.random.key(i, impl="rbg"), (3,))]


def prints(keys: jax.Array, i: jax.Array, rows: jax.Array, scale: jax.Array) -> list[jax.Array]:
    jax.debug.print("{}", i)
    return noisy(keys, i, rows, scale)


def body(function: Callable[..., list[jax.Array]]) -> tuple[Segment, ...]:
    inputs: tuple[Key, ...] = (KEYS, COUNTER, ROWS, SCALE)
    return (Segment((Operation(inputs, (OUT,), function, "act"),), inputs, (OUT,), ()),)


def primitives(function: Callable[..., Any], *arguments: Any) -> set[str]:
    lines = flatten(jax.make_jaxpr(function)(*arguments)).lines
    return {name for line in lines for name in line.primitives}


def test_results_are_the_same_and_nothing_is_drawn_inside_the_loop() -> None:
    shapes = dict(SHAPES)
    (before,), (after,) = draw_ahead(body(noisy), {ROWS}, COUNTER, LENGTH, shapes)
    keys, rows, scale = jax.random.split(jax.random.key(7), 3), jnp.arange(3.0), jnp.array([0.1, -0.7, 1.3])
    stacks = jax.jit(before.apply)(keys)
    assert [stack.shape for stack in stacks] == [shapes[key].shape for key in before.outputs] == [(LENGTH, 3)]
    assert isinstance(after, Segment)
    assert after.label == "act"
    arguments = {COUNTER: None, ROWS: rows, SCALE: scale, **dict(zip(before.outputs, stacks, strict=True))}
    assert set(after.inputs) == set(arguments), "the keys are not needed in the loop any more"
    for i in range(LENGTH):
        values = [jnp.int32(i) if key == COUNTER else arguments[key] for key in after.inputs]
        expected = jax.jit(noisy)(keys, jnp.int32(i), rows, scale)[0]
        np.testing.assert_array_equal(jax.jit(after)(*values)[0], expected)
        assert "random_bits" not in primitives(after, *values)


def test_host_callbacks_stay_in_the_loop() -> None:
    (before,), _ = draw_ahead(body(calls), {ROWS}, COUNTER, LENGTH, dict(SHAPES))
    names = primitives(before.apply, jax.random.split(jax.random.key(7), 3))
    assert "random_bits" in names
    assert "pure_callback" not in names


@pytest.mark.parametrize("function", [depends, other_keys, prints])
def test_draws_that_would_change_outside_the_loop_stay_in_it(function: Callable[..., list[jax.Array]]) -> None:
    steps = body(function)
    assert draw_ahead(steps, {ROWS}, COUNTER, LENGTH, dict(SHAPES)) == ([], steps)


def test_draws_that_are_not_worth_moving_stay_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = body(noisy)
    assert draw_ahead(steps, {ROWS}, COUNTER, 1, dict(SHAPES)) == ([], steps), "once is as good inside"
    monkeypatch.setattr(ahead, "MOST_BYTES", LENGTH * 3 * 4 - 1)
    assert draw_ahead(steps, {ROWS}, COUNTER, LENGTH, dict(SHAPES)) == ([], steps)


def test_acting_on_the_host_draws_nothing_between_two_steps() -> None:
    env = make("gymnasium:CartPole-v1", EnvOptions(env_mode="serial"))
    plan = planned(PPO(num_envs=4, horizon=4, minibatches=1), env, "single_learner_coarse", cpu_cluster(1, 1), True)
    program = next(program for program in plan.programs if program.fragment.name == "actor")
    schedule = optimize(program, {program.fragment.name: program.replicas for program in plan.programs})
    (loop,) = (step for step in schedule.steps if isinstance(step, Rounds))
    (act,) = (step for step in loop.body if isinstance(step, Segment))
    shapes = [jax.ShapeDtypeStruct(schedule.shapes[key].shape, schedule.shapes[key].dtype) for key in act.inputs]
    assert "random_bits" not in primitives(act, *shapes)
