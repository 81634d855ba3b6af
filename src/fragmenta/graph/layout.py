"""How the replicas of a fragment hold a value of the whole program: all of it, a part each, or a summand each."""

import dataclasses

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Whole:
    """Every replica has the very value of the whole program."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Every replica has its part of one dimension, which is `outer` times the parts of all replicas in order.

    Environments flattened behind time are `outer = time`: each replica has some of every time's.
    """

    dim: int
    outer: int = 1

    def __post_init__(self) -> None:
        # Parameters of JAX's operations may be NumPy's integers, which `vmap` does not take for an axis.
        object.__setattr__(self, "dim", int(self.dim))

    def moved(self, dim: int) -> "Split":
        """The same parts in another dimension."""
        return Split(dim, self.outer)


@dataclasses.dataclass(frozen=True)
class Partial:
    """The value is the sum of what the replicas have."""


Layout = Whole | Split | Partial
WHOLE, PARTIAL = Whole(), Partial()


def local_shape(shape: Shape, layout: Layout, parts: int) -> Shape:
    """The shape of what one of `parts` replicas has."""
    if not isinstance(layout, Split):
        return tuple(shape)
    return tuple(size // parts if i == layout.dim else size for i, size in enumerate(shape))


def divides(shape: Shape, layout: Split, parts: int) -> bool:
    """Whether a value of that shape can be held so."""
    return layout.dim < len(shape) and shape[layout.dim] % (layout.outer * parts) == 0
