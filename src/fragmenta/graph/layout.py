"""Layouts: how the replicas of a fragment hold a value: whole, split, or as partial sums."""

import dataclasses

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Whole:
    """Every replica holds the whole value."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Every replica holds its part of one dimension, in which the sequence of all parts repeats `outer` times.

    A flattened `time x environments` dimension has `outer = time`: each replica has its environments of every step.
    """

    dim: int
    outer: int = 1

    def __post_init__(self) -> None:
        # Parameters of JAX primitives may be NumPy integers, which `vmap` does not accept as an axis.
        object.__setattr__(self, "dim", int(self.dim))

    def moved(self, dim: int) -> "Split":
        """The same parts in another dimension."""
        return Split(dim, self.outer)


@dataclasses.dataclass(frozen=True)
class Partial:
    """The value is the sum over the replicas."""


Layout = Whole | Split | Partial
WHOLE, PARTIAL = Whole(), Partial()


def local_shape(shape: Shape, layout: Layout, parts: int) -> Shape:
    """The shape of the part that one of `parts` replicas holds."""
    if not isinstance(layout, Split):
        return tuple(shape)
    return tuple(size // parts if i == layout.dim else size for i, size in enumerate(shape))


def divides(shape: Shape, layout: Split, parts: int) -> bool:
    """Whether a value of that shape can have that layout."""
    return layout.dim < len(shape) and shape[layout.dim] % (layout.outer * parts) == 0
