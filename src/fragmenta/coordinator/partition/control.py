"""Calls and branches: what is inside is partitioned in turn."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax

from fragmenta.coordinator.partition.block import Block, Step, Taker
from fragmenta.coordinator.partition.costs import exchange, taker_of
from fragmenta.coordinator.partition.knowledge import Known
from fragmenta.coordinator.partition.parts import Replica, convert, gather, meets
from fragmenta.coordinator.partition.way import Case
from fragmenta.graph.exchange import Exchange, Work
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split
from fragmenta.tracing import jaxprs

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

    found = step_of(case.layouts, block.outputs, run, [block], whole=block.whole, known=block.known)
    # Within a library's function no line is the user's: that of the call is.
    line = jaxprs.source_line(case.equation)
    named = (e if e.line else dataclasses.replace(e, line=line) for e in found.exchanges)
    whole = {i: taker.at(line) for i, taker in found.whole.items()}
    return found._replace(exchanges=tuple(named), work=found.work.at(line), whole=whole)


def step_of(
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    run: Any,
    blocks: Sequence[Block],
    times: int = 1,
    more: Sequence[Exchange] = (),
    whole: Mapping[int, Taker] = {},
    known: tuple[Known, ...] = (),
    uses_index: bool = False,
) -> Step:
    """A step that runs blocks so many times, with conversions in between."""
    exchanges = tuple(e.repeated(times) for e in (*(e for block in blocks for e in block.exchanges), *more))
    work = sum((block.work.times(times) for block in blocks), Work())
    uses_index = uses_index or any(block.uses_index for block in blocks)
    return Step(tuple(inputs), tuple(outputs), run, exchanges, whole, known, (), work, uses_index)


def cond(partitioner: "Partitioner", case: Case) -> Step | None:
    """All replicas take the same branch, so they may meet in it."""
    operands = case.layouts[1:]
    branches = [partitioner.block(branch, operands, case.known[1:]) for branch in case.params["branches"]]
    outputs = [_common(column) for column in zip(*(block.outputs for block in branches), strict=True)]
    variables = case.equation.invars[1:]
    more = []
    for block in branches:
        more += conversions(case, block.outputs, outputs, case.equation.outvars)
        more += [exchange(kind_of(operands[i]), variables[i], taker) for i, taker in block.whole.items()]

    def run(replica: Replica, inputs: list[Any], _: Mapping[int, Any]) -> list[Any]:
        def branch(block: Block) -> Callable[..., list[Any]]:
            def taken(*values: Any) -> list[Any]:
                ready = {i: convert(values[i], operands[i], WHOLE, replica) for i in block.whole}
                found = block.run(replica, list(values), ready)
                return [
                    convert(x, now, after, replica) for x, now, after in zip(found, block.outputs, outputs, strict=True)
                ]

            return taken

        functions = [branch(block) for block in branches]
        platforms = case.params.get("branches_platforms")
        if platforms:
            names = {name: f for f, group in zip(functions, platforms, strict=True) for name in group or ("default",)}
            return jax.lax.platform_dependent(*inputs[1:], **names)
        return jax.lax.switch(inputs[0], functions, *inputs[1:])

    differs = any(a != b for block in branches for a, b in zip(block.outputs, outputs, strict=True))
    return step_of((WHOLE, *operands), outputs, run, branches, 1, more, uses_index=differs)


def _common(layouts: Sequence[Layout]) -> Layout:
    """How results of several branches are held alike."""
    splits = {layout for layout in layouts if isinstance(layout, Split)}
    if len(splits) == 1:
        return splits.pop()
    return PARTIAL if set(layouts) == {PARTIAL} else WHOLE


def conversions(case: Case, now: Sequence[Layout], after: Sequence[Layout], variables: Sequence[Any]) -> list[Exchange]:
    """What replicas exchange to bring values from one layout to another."""
    triples, taker = zip(now, after, variables, strict=False), taker_of(case.equation)
    return [exchange(kind_of(a), v, taker) for a, b, v in triples if meets(a, b)]


def kind_of(layout: Layout) -> Literal["sum", "gather"]:
    """How replicas get a value whole that they hold so."""
    return "sum" if layout == PARTIAL else "gather"


def linear_solve(partitioner: "Partitioner", case: Case) -> Step | None:
    """A linear system is what solves it; the rest of the equation is for derivatives, which are taken by now."""
    lengths, solve = case.params["const_lengths"], case.params["jaxprs"].solve
    first = lengths.matvec + lengths.vecmat
    own = [*range(first, first + lengths.solve), *range(sum(lengths), len(case.layouts))]
    block = partitioner.block(solve, [case.layouts[i] for i in own], [case.known[i] for i in own])

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        return block.run(replica, [inputs[i] for i in own], {j: whole[own[j]] for j in block.whole})

    return step_of(case.layouts, block.outputs, run, [block], whole={own[j]: taker for j, taker in block.whole.items()})
