"""Several iterations as one program, where a fragment exchanges nothing with others: no Python between them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.worker.backends.xla import Site, holding_axis, raw_function
from fragmenta.worker.steps import REPLICA, Key, Schedule, Segment

MOST = 64
"""Iterations per burst at most: as many metrics are kept on the device."""


def compile_burst(schedule: Schedule, where: Site, held: dict[Key, jax.ShapeDtypeStruct]) -> Callable | None:
    """A program that takes a number of iterations and the state, and gives the state after them and all metrics.

    None if the fragment does more in an iteration than compute: what crosses needs a hand from outside.
    """
    if len(schedule.steps) != 1 or not isinstance(schedule.steps[0], Segment) or where.members:
        return None  # replicas in other processes would have to agree on the number
    segment, program = schedule.steps[0], schedule.program
    if REPLICA in segment.inputs and where.together == 1:
        return None  # one program would have to serve replicas of every number
    raw = raw_function(segment, schedule, where)
    before = [program.graph.state_inputs[i].id for i in program.state]
    after = [program.graph.state_outputs[i].id for i in program.state]
    metrics = [program.graph.metrics[i].id for i in program.metrics]

    def iterate(state: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
        known: dict[Key, Any] = {REPLICA: jnp.int32(0), **dict(zip(before, state, strict=True))}
        known.update(zip(segment.outputs, raw(*(known[key] for key in segment.inputs)), strict=True))
        return tuple(known[key] for key in after), [known[key] for key in metrics]

    def burst(count: jax.Array, *state: Any) -> tuple[Any, ...]:
        shapes = jax.eval_shape(lambda *leaves: iterate(leaves)[1], *state)
        start = [jnp.zeros((MOST, *shape.shape), shape.dtype) for shape in shapes]

        def body(i: jax.Array, carry: tuple[tuple[Any, ...], list[Any]]) -> tuple[tuple[Any, ...], list[Any]]:
            state, kept = carry
            state, found = iterate(state)
            return state, [rows.at[i].set(row) for rows, row in zip(kept, found, strict=True)]

        state, kept = jax.lax.fori_loop(0, count, body, (state, start))
        return (*state, *kept)

    axes = [holding_axis(schedule, where, key) for key in before]
    everywhere: list[int | None] = [None] * len(metrics)
    counter = jax.ShapeDtypeStruct((), jnp.int32, sharding=where.sharding((), None))
    function = where.spmd(burst, [None, *axes], [*axes, *everywhere])
    placed = (*(held[key].sharding for key in before), *(where.sharding((), None) for _ in metrics))
    # Donated only where no two leaves end in one buffer and none is a metric as well.
    own = [i for i, key in enumerate(after) if after.count(key) == 1 and key not in metrics and key not in before]
    jitted = jax.jit(function, donate_argnums=tuple(i + 1 for i in own), out_shardings=placed)
    return jitted.lower(counter, *(held[key] for key in before)).compile()
