"""Hoist random bits out of a loop: draw those of all rounds before it starts, where they do not depend on the rounds.

In a loop that runs in Python, any work between two environment steps leaves the environments idle. Random bits that
depend only on keys and integers, like the round number, are the same whenever they are drawn. Floats derived from them
stay in the loop: their last digit depends on the program that they are compiled into.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.graph import Value
from fragmenta.tracing.flat import Flat, flatten, primitives, run
from fragmenta.tracing.jaxprs import key_dtype
from fragmenta.worker.steps import Key, Operation, Segment, Step, writes

MOST_BYTES = 2**26
"""Memory limit for the bits of one segment, over all rounds."""
FIXED = {"pure_callback", "io_callback", "ffi_call", "rng_bit_generator"}
"""Primitives that may behave differently when all rounds run at once (vmapped) than one after the other."""

DRAWS = ("random_", "threefry")
"""Beginnings of the names of primitives that draw random bits."""


def draw_ahead(
    body: Sequence[Step], changing: set[Key], counter: Key, length: int, shapes: dict[Key, Value]
) -> tuple[list[Operation], tuple[Step, ...]]:
    """Operations to run before a loop, and the loop's body reading their results instead of drawing the bits itself.

    `changing` has the keys that differ from round to round, besides the body's outputs; new values go into `shapes`.
    """
    changing = changing | {key for step in body for key in writes(step)}
    before: list[Operation] = []
    steps: list[Step] = []
    for step in body:
        parts = _split(step, changing, counter, length, shapes) if isinstance(step, Segment) else None
        if parts:
            before.append(parts[0])
        steps.append(parts[1] if parts else step)
    return before, tuple(steps)


def _split(
    segment: Segment, changing: set[Key], counter: Key, length: int, shapes: dict[Key, Value]
) -> tuple[Operation, Segment] | None:
    traced = segment.traced(shapes)
    if not any(name.startswith(DRAWS) for name in primitives(traced)):
        return None
    flat = flatten(traced)
    names = dict(zip(flat.inputs, segment.inputs, strict=True))
    bits = _hoistable(flat, {number for number, key in names.items() if key not in changing})
    if not bits or length < 2 or any(line.has_effects for line in flat.lines):
        return None
    early, reads = flat.needed(bits, set())
    # The vmapped computation needs about as much temporary memory as its largest intermediate value.
    largest = max(_bytes(flat.types[number]) for line in early for number in line.outputs)
    if length * (largest + sum(_bytes(flat.types[number]) for number in bits)) > MOST_BYTES:
        return None
    sources = [number for number in flat.inputs if number in reads and names[number] != counter]
    stacks: list[Key] = [(f"drawn for {segment.outputs[0]}", i) for i in range(len(bits))]
    for stack, number in zip(stacks, bits, strict=True):
        kind = flat.types[number]
        shapes[stack] = Value(-1, (length, *kind.shape), kind.dtype)
    count = [number for number, key in names.items() if key == counter]

    def draw(*arrays: Any) -> list[Any]:
        values = dict(zip(sources, arrays, strict=True))
        rounds = jnp.arange(length, dtype=jnp.int32)
        return jax.vmap(lambda i: run(early, values | dict.fromkeys(count, i), bits))(rounds)

    late, rest = flat.needed(flat.outputs, set(bits))
    late_inputs = [number for number in flat.inputs if number in rest and names[number] != counter]

    def apply(i: Any, *arrays: Any) -> list[Any]:
        rows = (jax.lax.dynamic_index_in_dim(stack, i, keepdims=False) for stack in arrays[: len(bits)])
        values = dict(zip((*bits, *late_inputs), (*rows, *arrays[len(bits) :]), strict=True))
        return run(late, values | dict.fromkeys(count, i), flat.outputs)

    inputs = (counter, *stacks, *(names[number] for number in late_inputs))
    donated = {segment.inputs[i] for i in segment.donated}
    label = segment.label if any(op.label for op in segment.operations) else ""
    remainder = Segment(
        (Operation(inputs, segment.outputs, apply, label),),
        inputs,
        segment.outputs,
        tuple(i for i, key in enumerate(inputs) if key in donated),
    )
    return Operation(tuple(names[number] for number in sources), tuple(stacks), draw), remainder


def _hoistable(flat: Flat, given: set[int]) -> list[int]:
    """Random integers that the rest reads, computable from the keys and integers among the values in `given`."""
    early, random, read_later = {number for number in given if _is_exact(flat.types[number].dtype)}, set(), set()
    for line in flat.needed(flat.outputs, set())[0]:
        reads = {atom for atom in line.inputs if isinstance(atom, int)}
        exact = all(_is_exact(flat.types[number].dtype) for number in line.outputs)
        if not reads <= early or line.primitives & FIXED or not exact:
            read_later |= reads
            continue
        early.update(line.outputs)
        if reads & random or any(name.startswith(DRAWS) for name in line.primitives):
            random.update(line.outputs)
    read_later |= {atom for atom in flat.outputs if isinstance(atom, int)}
    return sorted(number for number in random & read_later if not key_dtype(flat.types[number].dtype))


def _is_exact(dtype: Any) -> bool:
    """Whether it is an integer type, or the key type whose vmapped draws equal the single ones (threefry)."""
    if key_dtype(dtype):
        return dtype == jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype
    return jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_


def _bytes(kind: Any) -> int:
    return Value(-1, kind.shape, kind.dtype).bytes
