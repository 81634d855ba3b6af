"""What the replicas of a fragment exchange, and how they share their work."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A value that replicas exchange: parts that all of them gather, or partial sums that are added up."""

    kind: Literal["gather", "sum", "reduce"]
    bytes: int
    """The size of the whole value."""
    times: int
    """How often it happens each time the node runs."""
    operation: str
    """The operation that needs the value whole."""
    line: str
    """The user's file and line of that operation."""

    def repeated(self, times: int) -> "Exchange":
        """The same in a loop of `times` rounds."""
        return dataclasses.replace(self, times=self.times * times)


@dataclasses.dataclass(frozen=True)
class Repeated:
    """An operation that every replica computes in full: its approximate work, and the user's file and line."""

    operation: str
    line: str
    amount: float


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of replicas in arithmetic operations: `shared_out` is divided among them, `repeated` is done by each."""

    shared_out: float = 0.0
    repeated: tuple[Repeated, ...] = ()

    @property
    def repeated_amount(self) -> float:
        """The total work that every replica repeats."""
        return sum(one.amount for one in self.repeated)

    def __add__(self, other: "Work") -> "Work":
        return Work(self.shared_out + other.shared_out, self.repeated + other.repeated)

    def times(self, count: int) -> "Work":
        """The same, `count` times."""
        repeated = (dataclasses.replace(one, amount=one.amount * count) for one in self.repeated)
        return Work(self.shared_out * count, tuple(repeated))

    def at(self, line: str) -> "Work":
        """The same, with `line` for operations that have none."""
        repeated = (one if one.line else dataclasses.replace(one, line=line) for one in self.repeated)
        return Work(self.shared_out, tuple(repeated))
