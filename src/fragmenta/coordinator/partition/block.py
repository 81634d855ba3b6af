"""A jaxpr as replicas compute it: the steps in order, how they hold the results, and what they exchange."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from fragmenta.coordinator.partition.knowledge import Known
from fragmenta.coordinator.partition.parts import Replica, convert, meets
from fragmenta.graph.exchange import Exchange, Work
from fragmenta.graph.layout import WHOLE, Layout
from fragmenta.tracing.jaxprs import is_literal

Run = Callable[[Replica, list[Any], Mapping[int, Any]], list[Any]]
"""Takes a replica, what it has of the inputs, and those inputs whole (by position) that are wanted whole as well."""


class Taker(NamedTuple):
    """What takes a value whole: the operation, and the user's file and line."""

    operation: str
    line: str

    def at(self, line: str) -> "Taker":
        """The same with a line, if it has none."""
        return self if self.line else Taker(self.operation, line)


class Step(NamedTuple):
    """One equation: inputs as they are wanted, and a function of what a replica has of them."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    run: Run
    exchanges: tuple[Exchange, ...] = ()
    whole: Mapping[int, Taker] = {}
    """Inputs that `run` is also given whole, and what takes them so."""
    known: tuple[Known, ...] = ()
    columns: tuple[Known, ...] = ()
    work: Work = Work()
    uses_index: bool = False


class Placed(NamedTuple):
    """A step at its place: its equation, and how the results are kept."""

    equation: Any
    step: Step
    kept: tuple[Layout, ...]
    """A sum that somebody needs whole is combined where it is made."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A jaxpr, partitioned for one choice of its inputs' layouts."""

    jaxpr: Any
    constants: tuple[Any, ...]
    inputs: tuple[Layout, ...]
    steps: tuple[Placed, ...]
    outputs: tuple[Layout, ...]
    known: tuple[Known, ...]
    exchanges: tuple[Exchange, ...]
    whole: Mapping[int, Taker]
    """Inputs, by position, that have to be there whole as well; whoever runs the block sees to it."""
    uses_index: bool
    """Whether what a replica does depends on its number."""
    work: Work

    def run(self, replica: Replica, values: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        """Compute a replica's results from what it has of the inputs, and from those inputs that are there whole."""
        held: dict[Any, tuple[Any, Layout]] = {}
        converted: dict[tuple[Any, Layout], Any] = {}
        for variable, value, layout in zip(self.jaxpr.invars, values, self.inputs, strict=True):
            held[variable] = value, layout
        for variable, value in zip(self.jaxpr.constvars, self.constants, strict=True):
            held[variable] = value, WHOLE
        for i in self.whole:
            converted[self.jaxpr.invars[i], WHOLE] = whole[i]

        def read(atom: Any, wanted: Layout) -> Any:
            if is_literal(atom):
                return atom.val if wanted == WHOLE else convert(jnp.asarray(atom.val), WHOLE, wanted, replica)
            value, now = held[atom]
            if now == wanted:
                return value
            if (atom, wanted) not in converted:
                if meets(now, wanted) and wanted != WHOLE:
                    value, now = read(atom, WHOLE), WHOLE
                converted[atom, wanted] = convert(value, now, wanted, replica)
            return converted[atom, wanted]

        for equation, step, kept in self.steps:
            arguments = [read(atom, wanted) for atom, wanted in zip(equation.invars, step.inputs, strict=True)]
            results = step.run(replica, arguments, {i: read(equation.invars[i], WHOLE) for i in step.whole})
            for variable, value, now, after in zip(equation.outvars, results, step.outputs, kept, strict=True):
                held[variable] = convert(value, now, after, replica), after
        found = [read(atom, layout) for atom, layout in zip(self.jaxpr.outvars, self.outputs, strict=True)]
        numbers = map(is_literal, self.jaxpr.outvars)
        return [
            jnp.asarray(x, a.aval.dtype) if n else x for x, a, n in zip(found, self.jaxpr.outvars, numbers, strict=True)
        ]
