"""Loops, branches and calls: what is inside is partitioned in turn, with the layouts of carries found by a fixed point."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fragmenta.coordinator import jaxprs
from fragmenta.coordinator.partition.block import Block, Step
from fragmenta.coordinator.partition.costs import operations
from fragmenta.coordinator.partition.knowledge import Known
from fragmenta.coordinator.partition.parts import Replica, convert, gather, meets
from fragmenta.coordinator.partition.way import Case
from fragmenta.graph.exchange import Exchange, Work
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split, divides

if TYPE_CHECKING:
    from fragmenta.coordinator.partition.analyse import Partitioner


def combined(equation: Any, result: Any, replica: Replica) -> Any:
    """One result of those of all replicas, by the equation's own operation."""
    rows = gather(result[None], Split(0), replica)
    return jaxprs.bind(equation, [rows], axes=(0,))[0]


def call(partitioner: "Partitioner", case: Case, called: Any) -> Step:
    """A function is what is in it."""
    block = partitioner.block(called, case.layouts, case.known)
    barrier = case.params.get("prevent_cse") and case.params.get("differentiated")

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        # What is to be computed again must not be found to be there already.
        return block.run(replica, jax.lax.optimization_barrier(inputs) if barrier else inputs, whole)

    found = _step(case.layouts, block.outputs, run, [block], whole=block.whole, known=block.known)
    # Within a library's function no line is the user's: that of the call is.
    line = jaxprs.source_line(case.equation)
    named = (e if e.line else dataclasses.replace(e, line=line) for e in found.exchanges)
    return found._replace(exchanges=tuple(named))


def _step(
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    run: Any,
    blocks: Sequence[Block],
    times: int = 1,
    more: Sequence[Exchange] = (),
    whole: frozenset[int] = frozenset(),
    known: tuple[Known, ...] = (),
    uses_index: bool = False,
) -> Step:
    exchanges = tuple(e.repeated(times) for e in (*(e for block in blocks for e in block.exchanges), *more))
    work = sum((block.work.times(times) for block in blocks), Work())
    uses_index = uses_index or any(block.uses_index for block in blocks)
    return Step(tuple(inputs), tuple(outputs), run, exchanges, whole, known, (), work, uses_index)


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
    more = _conversions(partitioner, case, ends, carries, variables[first:then])
    more += [partitioner.exchange(_kind(carries[i - first]), case.equation, variables[i]) for i in inside]
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

    return _step(
        (*fixed, *carries, *sequences),
        (*carries, *stacked),
        run,
        [block],
        params["length"],
        more,
        frozenset(outside),
        uses_index=any(a != b for a, b in zip(ends, carries, strict=True)),
    )


def _map(case: Case, first: int) -> Step | None:
    layout = next(s for s in case.layouts[first:] if isinstance(s, Split) and s.dim == 0)
    sequences = (layout,) * (len(case.layouts) - first)
    function = jaxprs.as_closed_function(case.params["jaxpr"])
    length = case.params["length"] // case.parts

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
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
        if not apart or block.exchanges or test.exchanges or _among(block.whole, len(fixed)) or _among(test.whole, tests):
            return None
    ends, variables = block.outputs, case.equation.invars
    more = _conversions(partitioner, case, ends, carries, variables[first:])
    within = {i - len(fixed) for i in block.whole if i >= len(fixed)}, {i - tests for i in test.whole if i >= tests}
    both = [i for found in within for i in sorted(found)]
    more += [partitioner.exchange(_kind(carries[i]), case.equation, variables[first + i]) for i in both]
    outside = {i + tests for i in block.whole if i < len(fixed)} | {i for i in test.whole if i < tests}

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
    return _step(inputs, carries, run, [block, test], 1, more, frozenset(outside), uses_index=differs)


def _where(goes_on: Any, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    """Rows that have ended stay as they are."""

    def choose(a: Any, b: Any) -> Any:
        return jnp.where(goes_on.reshape(*goes_on.shape, *[1] * (a.ndim - goes_on.ndim)), a, b)

    return [choose(a, b) for a, b in zip(new, old, strict=True)]


def cond(partitioner: "Partitioner", case: Case) -> Step | None:
    """All replicas take the same branch, so they may meet in it."""
    operands = case.layouts[1:]
    branches = [partitioner.block(branch, operands, case.known[1:]) for branch in case.params["branches"]]
    outputs = [_common(column) for column in zip(*(block.outputs for block in branches), strict=True)]
    variables = case.equation.invars[1:]
    more = []
    for block in branches:
        more += _conversions(partitioner, case, block.outputs, outputs, case.equation.outvars)
        more += [partitioner.exchange(_kind(operands[i]), case.equation, variables[i]) for i in block.whole]

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        def branch(block: Block) -> Callable[..., list[Any]]:
            def taken(*values: Any) -> list[Any]:
                ready = {i: convert(values[i], operands[i], WHOLE, replica) for i in block.whole}
                found = block.run(replica, list(values), ready)
                return [convert(x, now, after, replica) for x, now, after in zip(found, block.outputs, outputs, strict=True)]

            return taken

        functions = [branch(block) for block in branches]
        platforms = case.params.get("branches_platforms")
        if platforms:
            names = {name: f for f, group in zip(functions, platforms, strict=True) for name in group or ("default",)}
            return jax.lax.platform_dependent(*inputs[1:], **names)
        return jax.lax.switch(inputs[0], functions, *inputs[1:])

    differs = any(a != b for block in branches for a, b in zip(block.outputs, outputs, strict=True))
    return _step((WHOLE, *operands), outputs, run, branches, 1, more, uses_index=differs)


def _settled(
    blocks: Callable[[Sequence[Layout]], Block], start: Sequence[Layout], zero: Sequence[bool], first: int
) -> tuple[Block, list[Layout]]:
    """The body of a loop and the layouts of its carries, such that what goes out can go in again.

    What starts at zero may be a sum that the loop adds up, so that is tried first. A carry becomes whole at most once
    more and stays so; until then it takes the layout that the body gives it.
    """
    carries = [PARTIAL if none and now == WHOLE else now for now, none in zip(start, zero, strict=True)]
    trying, final = [none for none in zero], [False] * len(start)
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


def _common(layouts: Sequence[Layout]) -> Layout:
    """How results of several branches are held alike."""
    splits = {layout for layout in layouts if isinstance(layout, Split)}
    if len(splits) == 1:
        return splits.pop()
    return PARTIAL if set(layouts) == {PARTIAL} else WHOLE


def _conversions(
    partitioner: "Partitioner", case: Case, now: Sequence[Layout], after: Sequence[Layout], variables: Sequence[Any]
) -> list[Exchange]:
    triples = zip(now, after, variables, strict=False)
    return [partitioner.exchange(_kind(a), case.equation, v) for a, b, v in triples if meets(a, b)]


def _kind(layout: Layout) -> str:
    return "sum" if layout == PARTIAL else "gather"


def _among(whole: frozenset[int], first: int) -> bool:
    return any(i >= first for i in whole)


def linear_solve(partitioner: "Partitioner", case: Case) -> Step | None:
    """A linear system is what solves it; the rest of the equation is for derivatives, which are taken by now."""
    lengths, solve = case.params["const_lengths"], case.params["jaxprs"].solve
    first = lengths.matvec + lengths.vecmat
    own = [*range(first, first + lengths.solve), *range(sum(lengths), len(case.layouts))]
    block = partitioner.block(solve, [case.layouts[i] for i in own], [case.known[i] for i in own])

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        return block.run(replica, [inputs[i] for i in own], {j: whole[own[j]] for j in block.whole})

    return _step(case.layouts, block.outputs, run, [block], whole=frozenset(own[j] for j in block.whole))


CONTROL: dict[str, Callable[..., Step | None]] = {
    "scan": scan,
    "while": while_loop,
    "cond": cond,
    "custom_linear_solve": linear_solve,
}
