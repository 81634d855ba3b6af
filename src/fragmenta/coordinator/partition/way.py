"""The input and the result of a rule: a `Case` describes an equation, a `Way` how replicas compute it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta.coordinator.partition.knowledge import distinct
from fragmenta.coordinator.partition.parts import Replica
from fragmenta.graph.layout import WHOLE, Layout, Shape, Split, divides, local_shape


@dataclasses.dataclass(frozen=True)
class Case:
    """An equation, the layouts of its inputs, and their values where they are known before anything runs."""

    equation: Any
    layouts: tuple[Layout, ...]
    known: tuple[np.ndarray | None, ...]
    columns: tuple[tuple[np.ndarray | None, ...], ...]
    """Per input: for index arrays, the value of each entry of the last dimension where it is known."""
    parts: int

    @property
    def params(self) -> dict[str, Any]:
        """The equation's parameters."""
        return self.equation.params

    def shape(self, i: int = 0) -> Shape:
        """The shape of input `i` in the whole program."""
        return tuple(self.equation.invars[i].aval.shape)

    def result(self, i: int = 0) -> Shape:
        """The shape of output `i` in the whole program."""
        return tuple(self.equation.outvars[i].aval.shape)

    def bytes(self, i: int) -> int:
        """The size of input `i` in bytes."""
        aval = self.equation.invars[i].aval
        return aval.size * aval.dtype.itemsize

    def split(self, i: int = 0) -> Split | None:
        """The layout of input `i` if it is split, else None."""
        layout = self.layouts[i]
        return layout if isinstance(layout, Split) else None

    def is_zero(self, i: int) -> bool:
        """Whether input `i` is known to be zero everywhere."""
        known = self.known[i]
        return known is not None and not distinct(known).any()

    def local(self, shape: Shape, layout: Layout) -> Shape:
        """The shape of a replica's part."""
        return local_shape(shape, layout, self.parts)

    def fits(self, shape: Shape, layout: Split) -> bool:
        """Whether a value of that shape can have that layout."""
        return divides(shape, layout, self.parts)


@dataclasses.dataclass(frozen=True)
class Way:
    """How replicas compute an equation: the layouts it needs its inputs in, and the layouts of its results.

    `params` replaces parameters of the equation; `run`, given the replica and its inputs, replaces the equation.
    With `combine`, the same operation then reduces the results of all replicas to one.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    run: Callable[[Replica, list[Any]], list[Any]] | None = None
    combine: bool = False


Rule = Callable[[Case], Way | None]
"""Returns how an equation is computed on parts, or None if it cannot be."""


def split_everywhere(case: Case, layout: Split) -> Way:
    """Split every input and output that has the dimension, and take the other inputs whole."""
    shape = case.result()

    def input_layout(i: int) -> Layout:
        input_shape = case.shape(i)
        return layout if len(input_shape) == len(shape) and input_shape[layout.dim] == shape[layout.dim] else WHOLE

    inputs = tuple(input_layout(i) for i in range(len(case.layouts)))
    return Way(inputs, (layout,) * len(case.equation.outvars))


def largest_split(case: Case) -> Split | None:
    """The layout of the largest input that is split."""
    split_inputs = [i for i in range(len(case.layouts)) if case.split(i)]
    return case.split(max(split_inputs, key=case.bytes)) if split_inputs else None
