"""Compiles several iterations of a fragment that exchanges nothing with others into one program, without Python."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.worker.backends.xla import Site, holding_axis, raw_function
from fragmenta.worker.steps import REPLICA, Key, Schedule, Segment

MOST = 64
"""Maximum iterations per burst: the metrics of this many iterations are buffered on the device."""
BURST_SECONDS = 0.1
"""Bursts double in size until one takes this long: Python overhead is negligible, and progress still shows."""


def runs_in_bursts(schedule: Schedule, together: bool, has_members: bool) -> bool:
    """Whether a fragment does nothing per iteration but compute, so that several fit into one call; `together` if its
    replicas run as one program here, `has_members` if they exchange values across processes."""
    if len(schedule.steps) != 1 or not isinstance(schedule.steps[0], Segment) or has_members:
        return False  # replicas in other processes would have to agree on the count
    return together or REPLICA not in schedule.steps[0].inputs  # else it depends on the replica's index


def compile_burst(
    schedule: Schedule, where: Site, specs: dict[Key, jax.ShapeDtypeStruct], function: Callable | None = None
) -> Callable | None:
    """A program that takes an iteration count and the state, and returns the new state and all metrics. `function`
    computes the segment in another way.

    None if the fragment does more per iteration than compute: sends, receives and host stages need Python.
    """
    if not runs_in_bursts(schedule, where.together > 1, bool(where.members)):
        return None
    segment, program = schedule.steps[0], schedule.program
    assert isinstance(segment, Segment)
    raw = function or raw_function(segment, schedule, where)
    before = [program.graph.state_inputs[i].id for i in program.state]
    after = [program.graph.state_outputs[i].id for i in program.state]
    metrics = [program.graph.metrics[i].id for i in program.metrics]

    def iterate(state: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
        values: dict[Key, Any] = {REPLICA: jnp.int32(0), **dict(zip(before, state, strict=True))}
        values.update(zip(segment.outputs, raw(*(values[key] for key in segment.inputs)), strict=True))
        return tuple(values[key] for key in after), [values[key] for key in metrics]

    def burst(count: jax.Array, *state: Any) -> tuple[Any, ...]:
        shapes = jax.eval_shape(lambda *leaves: iterate(leaves)[1], *state)
        start = [jnp.zeros((MOST, *shape.shape), shape.dtype) for shape in shapes]

        def body(i: jax.Array, carry: tuple[tuple[Any, ...], list[Any]]) -> tuple[tuple[Any, ...], list[Any]]:
            state, stacks = carry
            state, rows = iterate(state)
            return state, [stack.at[i].set(row) for stack, row in zip(stacks, rows, strict=True)]

        state, stacks = jax.lax.fori_loop(0, count, body, (state, start))
        return (*state, *stacks)

    axes = [holding_axis(schedule, where, key) for key in before]
    everywhere: list[int | None] = [None] * len(metrics)
    counter = jax.ShapeDtypeStruct((), jnp.int32, sharding=where.sharding((), None))
    function = where.spmd(burst, [None, *axes], [*axes, *everywhere])
    shardings = (*(specs[key].sharding for key in before), *(where.sharding((), None) for _ in metrics))
    # Donate a leaf only if it shares its final buffer with no other leaf and no metric.
    donatable = [i for i, key in enumerate(after) if after.count(key) == 1 and key not in metrics and key not in before]
    jitted = jax.jit(function, donate_argnums=tuple(i + 1 for i in donatable), out_shardings=shardings)
    return jitted.lower(counter, *(specs[key] for key in before)).compile()
