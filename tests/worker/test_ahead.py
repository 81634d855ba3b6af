"""Random numbers of a loop in Python are drawn before it, and are the same numbers."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fragmenta import PPO, EnvOptions, make
from fragmenta.coordinator.jaxprs import inner_jaxprs, open_jaxpr
from fragmenta.graph import Value
from fragmenta.worker import ahead
from fragmenta.worker.ahead import draw_ahead
from fragmenta.worker.optimize import optimize
from fragmenta.worker.steps import Key, Operation, Rounds, Segment
from helpers import cpu_cluster, planned

KEYS, COUNTER, SEEN, SHOWN, OUT = 1, ("round", 0), 2, 3, 4
LENGTH = 5
SHAPES: dict[Key, Value] = {
    KEYS: Value(KEYS, (3,), jax.random.key(0).dtype),
    COUNTER: Value(-1, (), jnp.dtype("int32")),
    SEEN: Value(SEEN, (3,), jnp.dtype("float32")),
    OUT: Value(OUT, (3,), jnp.dtype("float32")),
}


def noisy(keys: jax.Array, i: jax.Array, seen: jax.Array) -> list[jax.Array]:
    mine = jax.vmap(lambda key: jax.random.fold_in(key, i))(keys)
    return [seen * 2 + jax.jit(jax.vmap(jax.random.normal))(mine)]


def depends(keys: jax.Array, i: jax.Array, seen: jax.Array) -> list[jax.Array]:
    """What is drawn depends on what was seen, so it cannot be drawn before."""
    mine = jax.vmap(lambda key, x: jax.random.fold_in(key, i + x.astype(int)))(keys, seen)
    return [jax.vmap(jax.random.normal)(mine)]


def body(function: Callable[..., list[jax.Array]]) -> tuple[Segment, ...]:
    inputs: tuple[Key, ...] = (KEYS, COUNTER, SEEN)
    return (Segment((Operation(inputs, (OUT,), function, "act"),), inputs, (OUT,), ()),)


def draws(function: Callable[..., Any], *arguments: Any) -> bool:
    def within(jaxpr: Any) -> Iterator[str]:
        for equation in open_jaxpr(jaxpr)[0].eqns:
            yield equation.primitive.name
            for inner in inner_jaxprs(equation):
                yield from within(inner)

    return "random_bits" in set(within(jax.make_jaxpr(function)(*arguments)))


def test_the_same_numbers_come_out_and_none_is_drawn_inside() -> None:
    shapes = dict(SHAPES)
    (before,), (after,) = draw_ahead(body(noisy), {SEEN}, COUNTER, LENGTH, shapes)
    keys, seen = jax.random.split(jax.random.key(7), 3), jnp.arange(3.0)
    stacks = before.apply(keys)
    assert [stack.shape for stack in stacks] == [shapes[key].shape for key in before.outputs] == [(LENGTH, 3)]
    assert isinstance(after, Segment)
    assert after.label == "act"
    arguments = {COUNTER: None, SEEN: seen, **dict(zip(before.outputs, stacks, strict=True))}
    assert set(after.inputs) == set(arguments), "the keys are not needed in the loop any more"
    for i in range(LENGTH):
        values = [jnp.int32(i) if key == COUNTER else arguments[key] for key in after.inputs]
        np.testing.assert_array_equal(after(*values)[0], noisy(keys, jnp.int32(i), seen)[0])
        assert not draws(after, *values)


def test_what_depends_on_the_loop_stays_in_it() -> None:
    steps = body(depends)
    assert draw_ahead(steps, {SEEN}, COUNTER, LENGTH, dict(SHAPES)) == ([], steps)


def test_what_would_take_too_much_memory_stays_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MOST_BYTES", LENGTH * 3 * 4 - 1)
    steps = body(noisy)
    assert draw_ahead(steps, {SEEN}, COUNTER, LENGTH, dict(SHAPES)) == ([], steps)


def test_acting_on_the_host_draws_nothing_between_two_steps() -> None:
    env = make("gymnasium:CartPole-v1", EnvOptions(env_mode="serial"))
    plan = planned(PPO(num_envs=4, horizon=4, minibatches=1), env, "single_learner_coarse", cpu_cluster(1, 1), True)
    program = next(program for program in plan.programs if program.fragment.name == "actor")
    schedule = optimize(program, {program.fragment.name: program.replicas for program in plan.programs})
    (loop,) = (step for step in schedule.steps if isinstance(step, Rounds))
    (act,) = (step for step in loop.body if isinstance(step, Segment))
    shapes = [jax.ShapeDtypeStruct(schedule.shapes[key].shape, schedule.shapes[key].dtype) for key in act.inputs]
    assert not draws(act, *shapes)
