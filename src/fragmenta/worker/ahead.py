"""Draw the random numbers of all rounds of a loop before it starts, where they do not depend on what happens in it.

In a loop that runs in Python, everything between two steps of environments is time in which none is stepped. Bits that
need nothing but keys and integers, such as the number of the round, are the same whenever they are drawn. Fractions
made of them stay where they were: their last digit depends on what they are compiled with.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.graph import Value
from fragmenta.tracing.flat import Flat, flatten, run
from fragmenta.tracing.jaxprs import key_dtype
from fragmenta.worker.steps import Key, Operation, Segment, Step, writes

MOST_BYTES = 2**26
"""How much memory may be taken for it, in all rounds of one segment."""
FIXED = {"pure_callback", "io_callback", "ffi_call", "rng_bit_generator"}
"""What may mean something else for all rounds at once than for one after the other."""


def draw_ahead(
    body: Sequence[Step], changing: set[Key], counter: Key, length: int, shapes: dict[Key, Value]
) -> tuple[list[Operation], tuple[Step, ...]]:
    """Operations to compute before a loop, and its body with their results in place of what they computed.

    `changing` is what is different in every round, besides what the body makes; `shapes` learns what is new.
    """
    changing = changing | {key for step in body for key in writes(step)}
    before: list[Operation] = []
    steps: list[Step] = []
    for step in body:
        found = _split(step, changing, counter, length, shapes) if isinstance(step, Segment) else None
        if found:
            before.append(found[0])
        steps.append(found[1] if found else step)
    return before, tuple(steps)


def _split(
    segment: Segment, changing: set[Key], counter: Key, length: int, shapes: dict[Key, Value]
) -> tuple[Operation, Segment] | None:
    types = [jax.ShapeDtypeStruct(shapes[key].shape, shapes[key].dtype) for key in segment.inputs]
    flat = flatten(jax.make_jaxpr(segment)(*types))
    names = dict(zip(flat.inputs, segment.inputs, strict=True))
    drawn = _known_before(flat, {number for number, key in names.items() if key not in changing})
    if not drawn or length < 2 or any(line.has_effects for line in flat.lines):
        return None
    early, reads = flat.needed(drawn, set())
    # On the way, what is computed together takes about as much as the largest part of it.
    largest = max(_bytes(flat.types[number]) for line in early for number in line.outputs)
    if length * (largest + sum(_bytes(flat.types[number]) for number in drawn)) > MOST_BYTES:
        return None
    sources = [number for number in flat.inputs if number in reads and names[number] != counter]
    stacks: list[Key] = [(f"drawn for {segment.outputs[0]}", i) for i in range(len(drawn))]
    for stack, number in zip(stacks, drawn, strict=True):
        kind = flat.types[number]
        shapes[stack] = Value(-1, (length, *kind.shape), kind.dtype)
    count = [number for number, key in names.items() if key == counter]

    def draw(*arrays: Any) -> list[Any]:
        known = dict(zip(sources, arrays, strict=True))
        rounds = jnp.arange(length, dtype=jnp.int32)
        return jax.vmap(lambda i: run(early, known | dict.fromkeys(count, i), drawn))(rounds)

    late, rest = flat.needed(flat.outputs, set(drawn))
    kept = [number for number in flat.inputs if number in rest and names[number] != counter]

    def apply(i: Any, *arrays: Any) -> list[Any]:
        rows = (jax.lax.dynamic_index_in_dim(stack, i, keepdims=False) for stack in arrays[: len(drawn)])
        known = dict(zip((*drawn, *kept), (*rows, *arrays[len(drawn) :]), strict=True))
        return run(late, known | dict.fromkeys(count, i), flat.outputs)

    inputs = (counter, *stacks, *(names[number] for number in kept))
    donated = {segment.inputs[i] for i in segment.donated}
    label = segment.label if any(op.label for op in segment.operations) else ""
    rest_of_it = Segment(
        (Operation(inputs, segment.outputs, apply, label),),
        inputs,
        segment.outputs,
        tuple(i for i, key in enumerate(inputs) if key in donated),
    )
    return Operation(tuple(names[number] for number in sources), tuple(stacks), draw), rest_of_it


def _known_before(flat: Flat, given: set[int]) -> list[int]:
    """Random integers that the rest needs, made from keys and integers among what is given."""
    early, drawn, read_later = {number for number in given if _is_exact(flat.types[number].dtype)}, set(), set()
    for line in flat.needed(flat.outputs, set())[0]:
        reads = {atom for atom in line.inputs if isinstance(atom, int)}
        exact = all(_is_exact(flat.types[number].dtype) for number in line.outputs)
        if not reads <= early or line.primitives & FIXED or not exact:
            read_later |= reads
            continue
        early.update(line.outputs)
        if reads & drawn or any(name.startswith(("random_", "threefry")) for name in line.primitives):
            drawn.update(line.outputs)
    read_later |= {atom for atom in flat.outputs if isinstance(atom, int)}
    return sorted(number for number in drawn & read_later if not key_dtype(flat.types[number].dtype))


def _is_exact(dtype: Any) -> bool:
    """Integers, and keys of the kind that gives the same numbers for many at once as for each."""
    if key_dtype(dtype):
        return dtype == jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype
    return jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_


def _bytes(kind: Any) -> int:
    return Value(-1, kind.shape, kind.dtype).bytes
