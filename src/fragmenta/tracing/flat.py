"""A traced program as one list of equations, whatever functions it calls; parts of it as functions."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fragmenta.tracing.jaxprs import as_function, called_jaxpr, inner_jaxprs, is_literal, open_jaxpr


class Constant(NamedTuple):
    """A value that is written into the program."""

    value: Any


Atom = int | Constant
"""A value by its number, or a constant."""


class Line(NamedTuple):
    """One equation: `apply` makes the values of `outputs` from those of `inputs`, with these primitives in it."""

    inputs: list[Atom]
    outputs: list[int]
    apply: Callable[..., Sequence[Any]]
    primitives: frozenset[str]
    has_effects: bool


class Flat(NamedTuple):
    """A traced program: its inputs and outputs, its lines in order, and shape and type of every value."""

    inputs: list[int]
    outputs: list[Atom]
    lines: list[Line]
    types: dict[int, Any]

    def needed(self, wanted: Iterable[Atom], given: set[int]) -> tuple[list[Line], set[int]]:
        """The lines that make what is wanted from what is given, and the inputs that are wanted or read by them."""
        open_ = {atom for atom in wanted if isinstance(atom, int)} - given
        found = []
        for line in reversed(self.lines):
            if not open_.isdisjoint(line.outputs):
                found.append(line)
                open_ |= {atom for atom in line.inputs if isinstance(atom, int)} - given
        return found[::-1], open_ & set(self.inputs)


def run(lines: Iterable[Line], known: dict[int, Any], wanted: Iterable[Atom]) -> list[Any]:
    """What is wanted, computed from what is known."""

    def value(atom: Atom) -> Any:
        return atom.value if isinstance(atom, Constant) else known[atom]

    for line in lines:
        known.update(zip(line.outputs, line.apply(*map(value, line.inputs)), strict=True))
    return [value(atom) for atom in wanted]


def flatten(closed: Any) -> Flat:
    """All equations of a closed jaxpr in one list; those that only call another one are replaced by its own."""
    numbers, lines, types = itertools.count(), [], {}

    def new(variable: Any) -> int:
        number = next(numbers)
        types[number] = variable.aval
        return number

    def walk(jaxpr: Any, known: dict[Any, Atom]) -> list[Atom]:
        inner, constants = open_jaxpr(jaxpr)
        known |= {variable: Constant(value) for variable, value in zip(inner.constvars, constants, strict=True)}

        def atom(found: Any) -> Atom:
            return Constant(found.val) if is_literal(found) else known[found]

        for equation in inner.eqns:
            if (called := called_jaxpr(equation)) is not None:
                arguments = dict(zip(open_jaxpr(called)[0].invars, map(atom, equation.invars), strict=True))
                known.update(zip(equation.outvars, walk(called, arguments), strict=True))
                continue
            inputs, outputs, _, apply = as_function(inner, equation)
            made = {variable: new(variable) for variable in outputs}
            known.update(made)
            reads, within = [known[variable] for variable in inputs], frozenset(_primitives(equation))
            lines.append(Line(reads, list(made.values()), apply, within, bool(equation.effects)))
        return [atom(found) for found in inner.outvars]

    variables = open_jaxpr(closed)[0].invars
    inputs = [new(variable) for variable in variables]
    return Flat(inputs, walk(closed, dict(zip(variables, inputs, strict=True))), lines, types)


def _primitives(equation: Any) -> Iterator[str]:
    yield equation.primitive.name
    for inner in inner_jaxprs(equation):
        for sub in open_jaxpr(inner)[0].eqns:
            yield from _primitives(sub)
