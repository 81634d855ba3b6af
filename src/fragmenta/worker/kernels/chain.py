"""Equations outside loops that treat every sample alike: a network over a batch, a loss, its gradient.

The part of a program that becomes kernels depends on products of samples with weights and is done row by row. What it
needs from elsewhere is computed before, what needs its results after; XLA keeps both.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from fragmenta.tracing.jaxprs import inner_jaxprs, is_dropped, is_literal
from fragmenta.worker.kernels.ir import Op, Reg, without_unused
from fragmenta.worker.kernels.lower import Body, Lowering, UnsupportedEquation
from fragmenta.worker.kernels.stores import store
from fragmenta.worker.kernels.values import Memory, NoRule, Rows, Summed

FEWEST_ROWS = 64
"""Rows from which a network is worth a kernel."""


@dataclasses.dataclass(frozen=True)
class Chain:
    """A program in three parts: equations before the kernels, the kernels, equations after them."""

    before: tuple[Any, ...]
    kernels: tuple[Lowering, ...]
    after: tuple[Any, ...]
    replaced: tuple[Any, ...]
    """The equations that compute what the kernels do."""
    tail: tuple[Any, ...]
    """Equations of defaults that follow the kernels, such as the transpose of a sum."""
    results: tuple[Any, ...]
    """What kernels and tail compute."""


def spaces(equations: Sequence[Any]) -> list[tuple[int, ...]]:
    """The spaces of rows that products with weights have, those of most work first."""
    work: Counter[int] = Counter()
    for equation in equations:
        if equation.primitive.name == "dot_general":
            left, right = (atom.aval.shape for atom in equation.invars)
            (over, _), (batch, _) = equation.params["dimension_numbers"]
            if len(left) == 2 and len(right) == 2 and tuple(over) == (1,) and not batch and left[0] >= FEWEST_ROWS:
                work[left[0]] += left[0] * left[1] * right[-1]
    return [_divided(rows, equations) for rows, _ in work.most_common()]


def _divided(rows: int, equations: Sequence[Any]) -> tuple[int, ...]:
    """The dimensions that are merged into one of `rows`, if any are."""
    for equation in equations:
        if equation.primitive.name == "reshape":
            old, new = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            for merged, apart in ((new, old), (old, new)):
                if merged[:1] == (rows,) and len(apart) > 1 and apart[0] * apart[1] == rows and 1 not in apart[:2]:
                    return apart[:2]
    return (rows,)


def lower_chain(
    equations: Sequence[Any],
    outputs: Sequence[Any],
    space: tuple[int, ...],
    name: str,
    original: Sequence[Any],
    hidden: Collection[Any],
) -> Chain:
    """Kernels over the rows of `space`, and the equations before and after them: those of `original`, which has choices
    by platform where `equations` have the defaults. Kernels read and compute only what both have, and nothing hidden.
    """
    body = Body(space)
    heavy: set[Any] = set()
    later: set[Any] = set()
    inside: set[int] = set()
    reason = "nothing to do for every row"
    for index, equation in enumerate(equations):
        inputs = [atom for atom in equation.invars if not is_literal(atom)]
        if not later.isdisjoint(inputs):
            later |= set(equation.outvars)
            continue
        for atom in inputs:
            if atom not in body.values:
                body.memory(atom)
        marker = [len(ops) for ops, _ in body.builder.scopes]
        try:
            _try(body, equation)
        except UnsupportedEquation as error:
            del body.builder.scopes[0][0][marker[0] :]
            body.builder.forget()
            if not heavy.isdisjoint(inputs):
                later |= set(equation.outvars)
                reason = str(error)
            continue
        inside.add(index)
        if equation.primitive.name == "dot_general" or not heavy.isdisjoint(inputs):
            heavy |= set(equation.outvars)
    kernels = _lowerings(body, equations, outputs, name, heavy, inside, reason)
    made = {v for kernel in kernels for v in (*kernel.outputs, *(v for v, _ in kernel.sums))}
    wanted = {v for kernel in kernels for v in kernel.inputs}
    shared = {v for e in original for v in (*e.invars, *e.outvars) if not is_literal(v)}.difference(hidden)
    tail = _tail([e for i, e in enumerate(equations) if i not in inside], made - shared)
    made = (made | {v for e in tail for v in e.outvars}) & shared
    if not made or not wanted <= shared:
        raise NoRule("values that differ by platform")
    first = _closure(original, wanted, set())
    needed = _closure(original, {atom for atom in outputs if not is_literal(atom)}, made)
    replaced = _closure(original, made, {v for i in first for v in original[i].outvars})

    def chosen(places: set[int]) -> tuple[Any, ...]:
        return tuple(original[i] for i in sorted(places))

    return Chain(
        before=chosen(first),
        kernels=tuple(kernels),
        after=chosen(needed - first),
        replaced=chosen(replaced),
        tail=tuple(tail),
        results=tuple(v for e in equations for v in e.outvars if v in made),
    )


def _tail(equations: Sequence[Any], made: set[Any]) -> list[Any]:
    """The equations that need nothing but what is made."""
    made, tail = set(made), []
    for equation in equations:
        inputs = {atom for atom in equation.invars if not is_literal(atom)}
        if inputs and inputs <= made:
            tail.append(equation)
            made.update(equation.outvars)
    return tail


def _try(body: Body, equation: Any) -> None:
    if equation.effects or any(inner_jaxprs(equation)):
        raise UnsupportedEquation(equation, "no rule")
    outside = set(body.outside)
    body.outside.clear()  # what comes from outside is not set apart here
    try:
        body.run([equation])
    finally:
        body.outside |= outside


def _lowerings(
    body: Body,
    equations: Sequence[Any],
    outputs: Sequence[Any],
    name: str,
    heavy: set[Any],
    inside: set[int],
    reason: str,
) -> list[Lowering]:
    results = {atom for atom in outputs if not is_literal(atom)}
    # What equations outside read, and the program returns, of what the kernels can compute.
    read = {a for i, e in enumerate(equations) if i not in inside for a in e.invars if not is_literal(a)} | results
    stored = [
        v
        for i in sorted(inside)
        for v in equations[i].outvars
        if v in read and v in heavy and not isinstance(body.values[v], Summed) and not is_dropped(v)
    ]
    before = _needed_outside(equations, inside, set(body.arrays))
    needed_before = {a for i in before for a in equations[i].invars if not is_literal(a)}
    sums = [
        (v, value)
        for i in sorted(inside)
        for v in equations[i].outvars
        if isinstance(value := body.values.get(v), Summed) and v in read and v not in needed_before
    ]
    for place, variable in enumerate(stored):
        value, aval = body.values[variable], variable.aval
        if isinstance(value, Memory) or not isinstance(value, Rows):
            raise NoRule("results that are no rows")
        store(body.builder, value, tuple(aval.shape), place)
    kernels = _kernels(body, stored, sums, name)
    if not kernels:
        raise NoRule(reason)
    return kernels


def _needed_outside(equations: Sequence[Any], inside: set[int], arrays: set[Any]) -> set[int]:
    """The equations that compute what kernels read."""
    made = {v: i for i, e in enumerate(equations) for v in e.outvars}
    return _closure(equations, {v for v in arrays if v in made and made[v] not in inside}, set())


def _closure(equations: Sequence[Any], wanted: set[Any], given: set[Any]) -> set[int]:
    """The equations that compute `wanted`, unless it is given."""
    missing, chosen = set(wanted) - given, set()
    for index in reversed(range(len(equations))):
        equation = equations[index]
        if not missing.isdisjoint(equation.outvars):
            chosen.add(index)
            missing |= {atom for atom in equation.invars if not is_literal(atom)} - given
    return chosen


def _kernels(body: Body, stored: list[Any], sums: list[tuple[Any, Summed]], name: str) -> list[Lowering]:
    """Kernels for the stores and sums; those that share no product get a kernel each, so that less is alive at once."""
    ops = tuple(body.builder.scopes[0][0])
    place_of = {p: v for v, s in sums for p in range(s.offset, s.offset + math.prod(s.shape))}
    sinks = [op for op in ops if not op.outputs and (op.name.startswith("store") or op.attributes["place"] in place_of)]
    groups: list[tuple[set[Reg], list[Op]]] = []
    light: list[Op] = []
    for sink in sinks:
        products = {op.outputs[0] for op in without_unused((*(o for o in ops if o.outputs), sink)) if op.name == "dot"}
        if not products:
            light.append(sink)
            continue
        same = [group for group in groups if not group[0].isdisjoint(products)]
        groups = [group for group in groups if group not in same]
        merged = [op for group in same for op in group[1]]
        groups.append((products.union(*(group[0] for group in same)), [*merged, sink]))
    result = []
    for number, (_, mine) in enumerate(groups):
        chosen = {id(op) for op in (*mine, *(light if number == 0 else ()))}
        kept = [op for op in ops if op.outputs or id(op) in chosen]
        result.append(_kernel(body, kept, stored, sums, f"{name}{'abcdefgh'[number % 8]}"))
    return result


def _kernel(body: Body, ops: list[Op], stored: list[Any], sums: list[tuple[Any, Summed]], name: str) -> Lowering:
    arrays = [
        v
        for i, v in enumerate(stored)
        if any(op.name.startswith("store") and op.attributes["address"].array == i for op in ops)
    ]
    places = {op.attributes["place"] for op in ops if "place" in op.attributes}
    mine = [(v, s) for v, s in sums if places & set(range(s.offset, s.offset + math.prod(s.shape)))]
    moved, total = {}, 0
    renumbered = []
    for variable, summed in mine:
        moved.update({summed.offset + i: total + i for i in range(math.prod(summed.shape))})
        renumbered.append((variable, dataclasses.replace(summed, offset=total)))
        total += math.prod(summed.shape)
    changed = []
    for op in ops:
        attributes = dict(op.attributes)
        if "place" in attributes:
            attributes["place"] = moved[attributes["place"]]
        elif op.name.startswith("store"):
            address = attributes["address"]
            attributes["address"] = dataclasses.replace(address, array=arrays.index(stored[address.array]))
        changed.append(dataclasses.replace(op, attributes=attributes) if attributes != op.attributes else op)
    return body.finish(name, arrays, renumbered, tuple(changed), total)
