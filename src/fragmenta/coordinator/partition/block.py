"""A partitioned jaxpr: the steps in order, the layouts of the results, and what replicas exchange."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from fragmenta.coordinator.partition.knowledge import Known
from fragmenta.coordinator.partition.parts import Replica, convert, needs_exchange
from fragmenta.graph.exchange import Exchange, Work
from fragmenta.graph.layout import WHOLE, Layout
from fragmenta.tracing.jaxprs import is_literal

Run = Callable[[Replica, list[Any], Mapping[int, Any]], list[Any]]
"""Takes a replica, its parts of the inputs, and (by position) the inputs that are also needed whole."""


class Taker(NamedTuple):
    """The operation that needs a value whole, and the user's file and line."""

    operation: str
    line: str

    def at(self, line: str) -> "Taker":
        """The same, with `line` if it has none."""
        return self if self.line else Taker(self.operation, line)


class Step(NamedTuple):
    """How a replica computes one equation: the layouts of inputs and outputs, and a function of its parts."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    run: Run
    exchanges: tuple[Exchange, ...] = ()
    whole: Mapping[int, Taker] = {}
    """Inputs that `run` also receives whole, and the operation that needs them."""
    known: tuple[Known, ...] = ()
    columns: tuple[Known, ...] = ()
    work: Work = Work()
    uses_index: bool = False


class PlacedStep(NamedTuple):
    """A step, its equation, and the layouts in which the results are kept."""

    equation: Any
    step: Step
    output_layouts: tuple[Layout, ...]
    """Differ from `step.outputs` for partial sums that are needed whole: they are added up here."""


@dataclasses.dataclass(frozen=True)
class PartitionedJaxpr:
    """A jaxpr, partitioned for given layouts of its inputs."""

    jaxpr: Any
    constants: tuple[Any, ...]
    inputs: tuple[Layout, ...]
    steps: tuple[PlacedStep, ...]
    outputs: tuple[Layout, ...]
    known: tuple[Known, ...]
    exchanges: tuple[Exchange, ...]
    whole: Mapping[int, Taker]
    """Inputs, by position, that are also needed whole; the caller of `run` provides them."""
    uses_index: bool
    """Whether the computation depends on the index of the replica."""
    work: Work

    def run(self, replica: Replica, values: list[Any], whole: Mapping[int, Any]) -> list[Any]:
        """Compute a replica's results from its parts of the inputs, and from the inputs that are given whole."""
        scope: dict[Any, tuple[Any, Layout]] = {}
        converted: dict[tuple[Any, Layout], Any] = {}
        for variable, value, layout in zip(self.jaxpr.invars, values, self.inputs, strict=True):
            scope[variable] = value, layout
        for variable, value in zip(self.jaxpr.constvars, self.constants, strict=True):
            scope[variable] = value, WHOLE
        for i in self.whole:
            converted[self.jaxpr.invars[i], WHOLE] = whole[i]

        def read(atom: Any, target: Layout) -> Any:
            if is_literal(atom):
                return atom.val if target == WHOLE else convert(jnp.asarray(atom.val), WHOLE, target, replica)
            value, now = scope[atom]
            if now == target:
                return value
            if (atom, target) not in converted:
                if needs_exchange(now, target) and target != WHOLE:
                    value, now = read(atom, WHOLE), WHOLE
                converted[atom, target] = convert(value, now, target, replica)
            return converted[atom, target]

        for equation, step, output_layouts in self.steps:
            arguments = [read(atom, target) for atom, target in zip(equation.invars, step.inputs, strict=True)]
            results = step.run(replica, arguments, {i: read(equation.invars[i], WHOLE) for i in step.whole})
            for variable, value, now, after in zip(
                equation.outvars, results, step.outputs, output_layouts, strict=True
            ):
                scope[variable] = convert(value, now, after, replica), after
        outputs = [read(atom, layout) for atom, layout in zip(self.jaxpr.outvars, self.outputs, strict=True)]
        literal = map(is_literal, self.jaxpr.outvars)
        return [
            jnp.asarray(x, a.aval.dtype) if n else x
            for x, a, n in zip(outputs, self.jaxpr.outvars, literal, strict=True)
        ]
