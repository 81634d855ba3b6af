"""Loops: what is inside is partitioned in turn, with the layouts of carries found by a fixed point."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fragmenta.coordinator.partition.block import Block, Step
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
    """A loop over time; over the parts themselves, if no round needs another one."""
    parts, layouts = jaxprs.scan_parts(case.equation), case.layouts
    first, then = parts.constants, parts.constants + parts.carries
    if not parts.carries and any(isinstance(s, Split) and s.dim == 0 for s in layouts[then:]):
        return _map(case, first)
    sequences = [WHOLE if isinstance(s, Split) and s.dim == 0 else s for s in layouts[then:]]
    slices = [s.moved(s.dim - 1) if isinstance(s, Split) else s for s in sequences]
    body = case.params["jaxpr"]
    fixed, known = layouts[:first], (*case.known[:first], *[None] * (len(layouts) - first))

    def blocks(carries: Sequence[Layout]) -> Block:
        return partitioner.block(body, (*fixed, *carries, *slices), known)

    zero = [case.is_zero(first + i) for i in range(parts.carries)]
    block, carries = _settled(blocks, layouts[first:then], zero, first)
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
            ready = {i: whole[i] for i in outside if i < first} | x[1]
            ready |= {i: convert(carry[i - first], carries[i - first], WHOLE, replica) for i in inside}
            found = block.run(replica, [*inputs[:first], *carry, *x[0]], ready)
            pairs = zip(found[: parts.carries], ends, carries, strict=True)
            return [convert(x, now, after, replica) for x, now, after in pairs], found[parts.carries :]

        start, xs = inputs[first:then], (inputs[then:], rows)
        last, ys = jax.lax.scan(step, start, xs, params["length"], params["reverse"], params["unroll"])
        return [*last, *ys]

    return step_of(
        (*fixed, *carries, *sequences),
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
    """A loop until all replicas are done; where every row ends on its own, until a replica's own rows are."""
    params, layouts = case.params, case.layouts
    tests, first = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    fixed, checked = layouts[tests:first], layouts[:tests]

    def blocks(carries: Sequence[Layout]) -> Block:
        known = (*case.known[tests:first], *[None] * len(carries))
        return partitioner.block(params["body_jaxpr"], (*fixed, *carries), known)

    def settled(start: Sequence[Layout]) -> tuple[Block, list[Layout], Block]:
        block, carries = _settled(blocks, start, [case.is_zero(first + i) for i in range(len(start))], len(fixed))
        return block, carries, partitioner.block(params["cond_jaxpr"], (*checked, *carries))

    block, carries, test = settled(layouts[first:])
    own = test.outputs[0] if isinstance(test.outputs[0], Split) else None
    if own:
        shapes = [tuple(atom.aval.shape) for atom in case.equation.invars[first:]]
        if not all(divides(shape, own, case.parts) for shape in shapes):
            return None
        block, carries, test = settled([own] * len(carries))
        apart = [*block.outputs, *carries, test.outputs[0]] == [own] * (2 * len(carries) + 1)
        if (
            not apart
            or block.exchanges
            or test.exchanges
            or _among(block.whole, len(fixed))
            or _among(test.whole, tests)
        ):
            return None
    ends, variables = block.outputs, case.equation.invars
    more = conversions(case, ends, carries, variables[first:])
    within = {i - len(fixed) for i in block.whole if i >= len(fixed)}, {i - tests for i in test.whole if i >= tests}
    for found, taken, offset in ((block.whole, within[0], len(fixed)), (test.whole, within[1], tests)):
        more += [exchange(kind_of(carries[i]), variables[first + i], found[i + offset]) for i in sorted(taken)]
    outside = {i + tests: taker for i, taker in block.whole.items() if i < len(fixed)}
    outside |= {i: taker for i, taker in test.whole.items() if i < tests}

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        def ready(carry: Sequence[Any], wanted: set[int], offset: int) -> dict[int, Any]:
            return {i + offset: convert(carry[i], carries[i], WHOLE, replica) for i in wanted}

        def goes_on(carry: Sequence[Any]) -> Any:
            given = {i: whole[i] for i in test.whole if i < tests} | ready(carry, within[1], tests)
            (found,) = test.run(replica, [*inputs[:tests], *carry], given)
            return convert(found, test.outputs[0], own or WHOLE, replica)

        def step(carry: Sequence[Any]) -> list[Any]:
            given = {i: whole[i + tests] for i in block.whole if i < len(fixed)} | ready(carry, within[0], len(fixed))
            found = block.run(replica, [*inputs[tests:first], *carry], given)
            found = [convert(x, now, after, replica) for x, now, after in zip(found, ends, carries, strict=True)]
            return _where(goes_on(carry), found, carry) if rows else found

        rows = own is not None or bool(case.params["cond_jaxpr"].out_avals[0].shape)
        return list(jax.lax.while_loop(lambda c: jnp.any(goes_on(c)) if rows else goes_on(c), step, inputs[first:]))

    differs = any(a != b for a, b in zip(ends, carries, strict=True))
    inputs = (*checked, *fixed, *carries)
    return step_of(inputs, carries, run, [block, test], 1, more, outside, uses_index=differs)


def _where(goes_on: Any, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    """Rows that have ended stay as they are."""

    def choose(a: Any, b: Any) -> Any:
        return jnp.where(goes_on.reshape(*goes_on.shape, *[1] * (a.ndim - goes_on.ndim)), a, b)

    return [choose(a, b) for a, b in zip(new, old, strict=True)]


def _settled(
    blocks: Callable[[Sequence[Layout]], Block], start: Sequence[Layout], zero: Sequence[bool], first: int
) -> tuple[Block, list[Layout]]:
    """The body of a loop and the layouts of its carries, such that what goes out can go in again.

    What starts at zero may be a sum that the loop adds up, so that is tried first. A carry becomes whole at most once
    more and stays so; until then it takes the layout that the body gives it.
    """
    carries = [PARTIAL if none and now == WHOLE else now for now, none in zip(start, zero, strict=True)]
    trying, final = list(zero), [False] * len(start)
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
            elif trying[i] and now == PARTIAL:
                carries[i], trying[i] = WHOLE, False
            elif not stays and not (now == WHOLE and after == PARTIAL):
                carries[i], final[i] = WHOLE, True
        if carries == before:
            break
    sums = [WHOLE if now == PARTIAL and started == WHOLE else now for now, started in zip(carries, start, strict=True)]
    if sums != carries:
        plain = blocks(sums)
        if len(plain.exchanges) <= len(block.exchanges) and list(plain.outputs[: len(sums)]) == sums:
            return plain, sums  # nothing is added up there
    return block, carries


def _among(whole: Mapping[int, Any], first: int) -> bool:
    return any(i >= first for i in whole)
