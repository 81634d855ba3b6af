"""Calls and branches, whose inner jaxprs are partitioned in turn."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax

from fragmenta.coordinator.partition.block import PartitionedJaxpr, Step, Taker
from fragmenta.coordinator.partition.costs import exchange, taker_of
from fragmenta.coordinator.partition.knowledge import Known
from fragmenta.coordinator.partition.parts import Replica, convert, gather, needs_exchange
from fragmenta.coordinator.partition.way import Case
from fragmenta.graph.exchange import Exchange, Work
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split
from fragmenta.tracing import jaxprs

if TYPE_CHECKING:
    from fragmenta.coordinator.partition.analyse import Partitioner


def combine_results(equation: Any, result: Any, replica: Replica) -> Any:
    """Reduce the results of all replicas to one, with the equation's own operation."""
    rows = gather(result[None], Split(0), replica)
    return jaxprs.bind(equation, [rows], axes=(0,))[0]


def call(partitioner: "Partitioner", case: Case, called: Any) -> Step:
    """A function call: partition the called jaxpr."""
    block = partitioner.block(called, case.layouts, case.known)
    barrier = case.params.get("prevent_cse") and case.params.get("differentiated")

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        # Rematerialisation: XLA must not merge the recomputation with the original computation.
        return block.run(replica, jax.lax.optimization_barrier(inputs) if barrier else inputs, whole)

    step = step_of(case.layouts, block.outputs, run, [block], whole=block.whole, known=block.known)
    # Inside a library function no line is the user's, so use the line of the call.
    line = jaxprs.source_line(case.equation)
    exchanges = (e if e.line else dataclasses.replace(e, line=line) for e in step.exchanges)
    whole = {i: taker.at(line) for i, taker in step.whole.items()}
    return step._replace(exchanges=tuple(exchanges), work=step.work.at(line), whole=whole)


def step_of(
    inputs: Sequence[Layout],
    outputs: Sequence[Layout],
    run: Any,
    blocks: Sequence[PartitionedJaxpr],
    times: int = 1,
    more: Sequence[Exchange] = (),
    whole: Mapping[int, Taker] = {},
    known: tuple[Known, ...] = (),
    uses_index: bool = False,
) -> Step:
    """A step that runs each block `times` times, with the exchanges `more` in between."""
    exchanges = tuple(e.repeated(times) for e in (*(e for block in blocks for e in block.exchanges), *more))
    work = sum((block.work.times(times) for block in blocks), Work())
    uses_index = uses_index or any(block.uses_index for block in blocks)
    return Step(tuple(inputs), tuple(outputs), run, exchanges, whole, known, (), work, uses_index)


def cond(partitioner: "Partitioner", case: Case) -> Step | None:
    """A conditional: all replicas take the same branch, so they may exchange values in it."""
    operands = case.layouts[1:]
    branches = [partitioner.block(branch, operands, case.known[1:]) for branch in case.params["branches"]]
    outputs = [_common(column) for column in zip(*(block.outputs for block in branches), strict=True)]
    variables = case.equation.invars[1:]
    more = []
    for block in branches:
        more += conversions(case, block.outputs, outputs, case.equation.outvars)
        more += [exchange(kind_of(operands[i]), variables[i], taker) for i, taker in block.whole.items()]

    def run(replica: Replica, inputs: list[Any], _: Mapping[int, Any]) -> list[Any]:
        def branch(block: PartitionedJaxpr) -> Callable[..., list[Any]]:
            def run_branch(*values: Any) -> list[Any]:
                whole_inputs = {i: convert(values[i], operands[i], WHOLE, replica) for i in block.whole}
                results = block.run(replica, list(values), whole_inputs)
                return [
                    convert(x, now, after, replica)
                    for x, now, after in zip(results, block.outputs, outputs, strict=True)
                ]

            return run_branch

        functions = [branch(block) for block in branches]
        platforms = case.params.get("branches_platforms")
        if platforms:
            names = {name: f for f, group in zip(functions, platforms, strict=True) for name in group or ("default",)}
            return jax.lax.platform_dependent(*inputs[1:], **names)
        return jax.lax.switch(inputs[0], functions, *inputs[1:])

    differs = any(a != b for block in branches for a, b in zip(block.outputs, outputs, strict=True))
    return step_of((WHOLE, *operands), outputs, run, branches, 1, more, uses_index=differs)


def _common(layouts: Sequence[Layout]) -> Layout:
    """A layout that the results of all branches can be converted to."""
    splits = {layout for layout in layouts if isinstance(layout, Split)}
    if len(splits) == 1:
        return splits.pop()
    return PARTIAL if set(layouts) == {PARTIAL} else WHOLE


def conversions(case: Case, now: Sequence[Layout], after: Sequence[Layout], variables: Sequence[Any]) -> list[Exchange]:
    """Exchanges that convert values from one layout to another."""
    triples, taker = zip(now, after, variables, strict=False), taker_of(case.equation)
    return [exchange(kind_of(a), v, taker) for a, b, v in triples if needs_exchange(a, b)]


def kind_of(layout: Layout) -> Literal["sum", "gather"]:
    """The kind of exchange that makes a value of this layout whole."""
    return "sum" if layout == PARTIAL else "gather"


def linear_solve(partitioner: "Partitioner", case: Case) -> Step | None:
    """A linear solve: partition the solver. The other jaxprs are for derivatives, which have been taken by now."""
    lengths, solve = case.params["const_lengths"], case.params["jaxprs"].solve
    first = lengths.matvec + lengths.vecmat
    solver_inputs = [*range(first, first + lengths.solve), *range(sum(lengths), len(case.layouts))]
    block = partitioner.block(solve, [case.layouts[i] for i in solver_inputs], [case.known[i] for i in solver_inputs])

    def run(replica: Replica, inputs: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        return block.run(replica, [inputs[i] for i in solver_inputs], {j: whole[solver_inputs[j]] for j in block.whole})

    return step_of(
        case.layouts, block.outputs, run, [block], whole={solver_inputs[j]: taker for j, taker in block.whole.items()}
    )
