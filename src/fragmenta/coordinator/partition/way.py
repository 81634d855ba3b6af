"""One equation as a rule sees it, and what a rule answers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta.coordinator.partition.knowledge import distinct
from fragmenta.coordinator.partition.parts import Replica
from fragmenta.graph.layout import WHOLE, Layout, Shape, Split, divides, local_shape


@dataclasses.dataclass(frozen=True)
class Case:
    """An equation, how replicas hold its inputs, and what is known of them before anything runs."""

    equation: Any
    layouts: tuple[Layout, ...]
    known: tuple[np.ndarray | None, ...]
    columns: tuple[tuple[np.ndarray | None, ...], ...]
    """Per input: of arrays of indices, what is known of each entry of the last dimension."""
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
        """The size of input `i`."""
        aval = self.equation.invars[i].aval
        return aval.size * aval.dtype.itemsize

    def split(self, i: int = 0) -> Split | None:
        """How input `i` is split, if it is."""
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
        """Whether a value of that shape can be split so."""
        return divides(shape, layout, self.parts)


@dataclasses.dataclass(frozen=True)
class Way:
    """How an equation is done: with inputs in these layouts, its results come in those.

    `params` replaces parameters of the equation; `run`, given the replica and its inputs, replaces the equation.
    With `combine`, the same operation then makes one result of those of all replicas.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    run: Callable[[Replica, list[Any]], list[Any]] | None = None
    combine: bool = False


Rule = Callable[[Case], Way | None]
"""Answers how an equation can be done on parts, or None if it cannot."""


def same_for_all(case: Case, layout: Split) -> Way:
    """All inputs and outputs that have the dimension in parts of it, whatever has not whole."""
    shape = case.result()

    def wanted(i: int) -> Layout:
        given = case.shape(i)
        return layout if len(given) == len(shape) and given[layout.dim] == shape[layout.dim] else WHOLE

    inputs = tuple(wanted(i) for i in range(len(case.layouts)))
    return Way(inputs, (layout,) * len(case.equation.outvars))


def largest_split(case: Case) -> Split | None:
    """The layout of the largest input that is split."""
    split = [i for i in range(len(case.layouts)) if case.split(i)]
    return case.split(max(split, key=case.bytes)) if split else None
