"""A traced program as one flat list of equations, with calls inlined, parts of which can be run."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fragmenta.tracing.jaxprs import as_function, called_jaxpr, inner_jaxprs, is_literal, open_jaxpr


class Constant(NamedTuple):
    """A constant of the program."""

    value: Any


Atom = int | Constant
"""The number of a value, or a constant."""


class Line(NamedTuple):
    """One equation: `apply` computes `outputs` from `inputs`; `primitives` lists all primitives in it."""

    inputs: list[Atom]
    outputs: list[int]
    apply: Callable[..., Sequence[Any]]
    primitives: frozenset[str]
    has_effects: bool


class Flat(NamedTuple):
    """A traced program: its inputs and outputs, its lines in order, and the abstract value of every number."""

    inputs: list[int]
    outputs: list[Atom]
    lines: list[Line]
    types: dict[int, Any]

    def needed(self, targets: Iterable[Atom], available: set[int]) -> tuple[list[Line], set[int]]:
        """The lines that compute `targets` given `available`, and the program inputs that these need."""
        missing = {atom for atom in targets if isinstance(atom, int)} - available
        lines = []
        for line in reversed(self.lines):
            if not missing.isdisjoint(line.outputs):
                lines.append(line)
                missing |= {atom for atom in line.inputs if isinstance(atom, int)} - available
        return lines[::-1], missing & set(self.inputs)


def run(lines: Iterable[Line], known: dict[int, Any], targets: Iterable[Atom]) -> list[Any]:
    """Run `lines` on the values in `known`, which they extend; the values of `targets`."""

    def value(atom: Atom) -> Any:
        return atom.value if isinstance(atom, Constant) else known[atom]

    for line in lines:
        known.update(zip(line.outputs, line.apply(*map(value, line.inputs)), strict=True))
    return [value(atom) for atom in targets]


def flatten(closed: Any) -> Flat:
    """All equations of a closed jaxpr in one list; equations that only call another jaxpr are inlined."""
    numbers, lines, types = itertools.count(), [], {}

    def new(variable: Any) -> int:
        number = next(numbers)
        types[number] = variable.aval
        return number

    def walk(jaxpr: Any, known: dict[Any, Atom]) -> list[Atom]:
        inner, constants = open_jaxpr(jaxpr)
        known |= {variable: Constant(value) for variable, value in zip(inner.constvars, constants, strict=True)}

        def atom(x: Any) -> Atom:
            return Constant(x.val) if is_literal(x) else known[x]

        for equation in inner.eqns:
            if (called := called_jaxpr(equation)) is not None:
                arguments = dict(zip(open_jaxpr(called)[0].invars, map(atom, equation.invars), strict=True))
                known.update(zip(equation.outvars, walk(called, arguments), strict=True))
                continue
            inputs, outputs, _, apply = as_function(inner, equation)
            new_numbers = {variable: new(variable) for variable in outputs}
            known.update(new_numbers)
            reads, primitives = [known[variable] for variable in inputs], frozenset(_primitives(equation))
            lines.append(Line(reads, list(new_numbers.values()), apply, primitives, bool(equation.effects)))
        return [atom(x) for x in inner.outvars]

    variables = open_jaxpr(closed)[0].invars
    inputs = [new(variable) for variable in variables]
    return Flat(inputs, walk(closed, dict(zip(variables, inputs, strict=True))), lines, types)


def primitives(jaxpr: Any) -> Iterator[str]:
    """The names of all primitives in a program, at any depth."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        yield from _primitives(equation)


def _primitives(equation: Any) -> Iterator[str]:
    yield equation.primitive.name
    for inner in inner_jaxprs(equation):
        yield from primitives(inner)
