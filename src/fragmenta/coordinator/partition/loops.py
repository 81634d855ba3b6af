"""Loops, whose bodies are partitioned in turn, with the layouts of carries found by fixed-point iteration."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fragmenta.coordinator.partition.block import PartitionedJaxpr, Step
from fragmenta.coordinator.partition.control import conversions, kind_of, step_of
from fragmenta.coordinator.partition.costs import exchange, operations
from fragmenta.coordinator.partition.parts import Replica, convert
from fragmenta.coordinator.partition.way import Case
from fragmenta.graph.exchange import Work
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split, divides
from fragmenta.tracing import jaxprs

if TYPE_CHECKING:
    from fragmenta.coordinator.partition.analyse import Partitioner


def scan(partitioner: "Partitioner", case: Case) -> Step | None:
    """A loop over time, or over the split dimension itself if no round depends on another."""
    parts, layouts = jaxprs.scan_parts(case.equation), case.layouts
    first, then = parts.constants, parts.constants + parts.carries
    if not parts.carries and any(isinstance(s, Split) and s.dim == 0 for s in layouts[then:]):
        return _map(case, first)
    sequences = [WHOLE if isinstance(s, Split) and s.dim == 0 else s for s in layouts[then:]]
    slices = [s.moved(s.dim - 1) if isinstance(s, Split) else s for s in sequences]
    body = case.params["jaxpr"]
    constant_layouts, known = layouts[:first], (*case.known[:first], *[None] * (len(layouts) - first))

    def blocks(carries: Sequence[Layout]) -> PartitionedJaxpr:
        return partitioner.block(body, (*constant_layouts, *carries, *slices), known)

    zero = [case.is_zero(first + i) for i in range(parts.carries)]
    block, carries = _fixed_point(blocks, layouts[first:then], zero, first)
    stacked = [s.moved(s.dim + 1) if isinstance(s, Split) else s for s in block.outputs[parts.carries :]]
    ends = block.outputs[: parts.carries]
    inside = [i for i in block.whole if first <= i < then]
    variables = case.equation.invars
    more = conversions(case, ends, carries, variables[first:then])
    more += [exchange(kind_of(carries[i - first]), variables[i], block.whole[i]) for i in inside]
    params = case.params
    outside = sorted(i for i in block.whole if i not in inside)

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        rows = {i: whole[i] for i in outside if i >= then}

        def step(carry: list[Any], x: tuple[list[Any], dict[int, Any]]) -> tuple[list[Any], list[Any]]:
            whole_inputs = {i: whole[i] for i in outside if i < first} | x[1]
            whole_inputs |= {i: convert(carry[i - first], carries[i - first], WHOLE, replica) for i in inside}
            results = block.run(replica, [*inputs[:first], *carry, *x[0]], whole_inputs)
            pairs = zip(results[: parts.carries], ends, carries, strict=True)
            return [convert(x, now, after, replica) for x, now, after in pairs], results[parts.carries :]

        start, xs = inputs[first:then], (inputs[then:], rows)
        finals, ys = jax.lax.scan(step, start, xs, params["length"], params["reverse"], params["unroll"])
        return [*finals, *ys]

    return step_of(
        (*constant_layouts, *carries, *sequences),
        (*carries, *stacked),
        run,
        [block],
        params["length"],
        more,
        {i: block.whole[i] for i in outside},
        uses_index=any(a != b for a, b in zip(ends, carries, strict=True)),
    )


def _map(case: Case, first: int) -> Step | None:
    layout = next(s for s in case.layouts[first:] if isinstance(s, Split) and s.dim == 0)
    sequences = (layout,) * (len(case.layouts) - first)
    function = jaxprs.as_closed_function(case.params["jaxpr"])
    length = case.params["length"] // case.parts

    def run(_: Replica, inputs: list[Any], __: Mapping[int, Any]) -> list[Any]:
        def step(nothing: tuple[()], x: list[Any]) -> tuple[tuple[()], list[Any]]:
            return nothing, function(*inputs[:first], *x)

        return jax.lax.scan(step, (), inputs[first:], length, unroll=case.params["unroll"])[1]

    outputs = (layout,) * len(case.equation.outvars)
    return Step((*(WHOLE,) * first, *sequences), outputs, run, work=Work(shared_out=operations(case.equation)))


def while_loop(partitioner: "Partitioner", case: Case) -> Step | None:
    """A loop until all replicas are done; if rows end independently, as under vmap, until the replica's rows are."""
    params, layouts = case.params, case.layouts
    test_constants, first = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    body_layouts, test_layouts = layouts[test_constants:first], layouts[:test_constants]

    def blocks(carries: Sequence[Layout]) -> PartitionedJaxpr:
        known = (*case.known[test_constants:first], *[None] * len(carries))
        return partitioner.block(params["body_jaxpr"], (*body_layouts, *carries), known)

    def partition_loop(start: Sequence[Layout]) -> tuple[PartitionedJaxpr, list[Layout], PartitionedJaxpr]:
        block, carries = _fixed_point(
            blocks, start, [case.is_zero(first + i) for i in range(len(start))], len(body_layouts)
        )
        return block, carries, partitioner.block(params["cond_jaxpr"], (*test_layouts, *carries))

    block, carries, test = partition_loop(layouts[first:])
    row_split = test.outputs[0] if isinstance(test.outputs[0], Split) else None
    if row_split:
        shapes = [tuple(atom.aval.shape) for atom in case.equation.invars[first:]]
        if not all(divides(shape, row_split, case.parts) for shape in shapes):
            return None
        block, carries, test = partition_loop([row_split] * len(carries))
        independent = [*block.outputs, *carries, test.outputs[0]] == [row_split] * (2 * len(carries) + 1)
        if (
            not independent
            or block.exchanges
            or test.exchanges
            or _takes_carry_whole(block.whole, len(body_layouts))
            or _takes_carry_whole(test.whole, test_constants)
        ):
            return None
    ends, variables = block.outputs, case.equation.invars
    more = conversions(case, ends, carries, variables[first:])
    carries_inside = (
        {i - len(body_layouts) for i in block.whole if i >= len(body_layouts)},
        {i - test_constants for i in test.whole if i >= test_constants},
    )
    offsets = len(body_layouts), test_constants
    for takers, positions, offset in zip((block.whole, test.whole), carries_inside, offsets, strict=True):
        more += [exchange(kind_of(carries[i]), variables[first + i], takers[i + offset]) for i in sorted(positions)]
    outside = {i + test_constants: taker for i, taker in block.whole.items() if i < len(body_layouts)}
    outside |= {i: taker for i, taker in test.whole.items() if i < test_constants}

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        def whole_carries(carry: Sequence[Any], positions: set[int], offset: int) -> dict[int, Any]:
            return {i + offset: convert(carry[i], carries[i], WHOLE, replica) for i in positions}

        def goes_on(carry: Sequence[Any]) -> Any:
            whole_inputs = {i: whole[i] for i in test.whole if i < test_constants}
            whole_inputs |= whole_carries(carry, carries_inside[1], test_constants)
            (result,) = test.run(replica, [*inputs[:test_constants], *carry], whole_inputs)
            return convert(result, test.outputs[0], row_split or WHOLE, replica)

        def step(carry: Sequence[Any]) -> list[Any]:
            whole_inputs = {i: whole[i + test_constants] for i in block.whole if i < len(body_layouts)}
            whole_inputs |= whole_carries(carry, carries_inside[0], len(body_layouts))
            results = block.run(replica, [*inputs[test_constants:first], *carry], whole_inputs)
            results = [convert(x, now, after, replica) for x, now, after in zip(results, ends, carries, strict=True)]
            return _where(goes_on(carry), results, carry) if rows else results

        rows = row_split is not None or bool(case.params["cond_jaxpr"].out_avals[0].shape)
        return list(jax.lax.while_loop(lambda c: jnp.any(goes_on(c)) if rows else goes_on(c), step, inputs[first:]))

    differs = any(a != b for a, b in zip(ends, carries, strict=True))
    inputs = (*test_layouts, *body_layouts, *carries)
    return step_of(inputs, carries, run, [block, test], 1, more, outside, uses_index=differs)


def _where(goes_on: Any, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    """Update only the rows that have not ended."""

    def choose(a: Any, b: Any) -> Any:
        return jnp.where(goes_on.reshape(*goes_on.shape, *[1] * (a.ndim - goes_on.ndim)), a, b)

    return [choose(a, b) for a, b in zip(new, old, strict=True)]


def _fixed_point(
    blocks: Callable[[Sequence[Layout]], PartitionedJaxpr], start: Sequence[Layout], zero: Sequence[bool], first: int
) -> tuple[PartitionedJaxpr, list[Layout]]:
    """The body of a loop and layouts of its carries that are consistent from one round to the next.

    A carry that starts at zero may be an accumulated sum, so partial sums are tried first. Otherwise a carry takes the
    layout that the body gives it; if the two still disagree, it becomes whole for good.
    """
    carries = [PARTIAL if is_zero and now == WHOLE else now for now, is_zero in zip(start, zero, strict=True)]
    may_be_partial, final = list(zero), [False] * len(start)
    while True:
        block = blocks(carries)
        before = list(carries)
        for i, (now, after) in enumerate(zip(before, block.outputs, strict=False)):
            taken_whole = first + i in block.whole
            if final[i] or (now == after and not (taken_whole and now == PARTIAL)):
                continue
            stays = isinstance(now, Split) and not taken_whole and not isinstance(after, Split)
            if now == WHOLE and isinstance(after, Split):
                carries[i] = after
            elif may_be_partial[i] and now == PARTIAL:
                carries[i], may_be_partial[i] = WHOLE, False
            elif not stays and not (now == WHOLE and after == PARTIAL):
                carries[i], final[i] = WHOLE, True
        if carries == before:
            break
    without_sums = [
        WHOLE if now == PARTIAL and initial == WHOLE else now for now, initial in zip(carries, start, strict=True)
    ]
    if without_sums != carries:
        plain = blocks(without_sums)
        if len(plain.exchanges) <= len(block.exchanges) and list(plain.outputs[: len(without_sums)]) == without_sums:
            return plain, without_sums  # partial sums save no exchange here
    return block, carries


def _takes_carry_whole(whole: Mapping[int, Any], first: int) -> bool:
    return any(i >= first for i in whole)
