"""What replicas of one fragment hand each other."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A value that replicas exchange among themselves: parts that all get, or summands that are added up."""

    kind: Literal["gather", "sum", "reduce"]
    bytes: int
    """Of the whole value, each time."""
    times: int
    """How often each time its node runs."""
    operation: str
    """What takes the value whole."""
    line: str
    """The user's file and line where it does."""

    def repeated(self, times: int) -> "Exchange":
        """The same in a loop."""
        return dataclasses.replace(self, times=self.times * times)


@dataclasses.dataclass(frozen=True)
class Repeated:
    """An operation that every replica does for all: about how much it is, and the user's file and line."""

    operation: str
    line: str
    amount: float


@dataclasses.dataclass(frozen=True)
class Work:
    """What replicas compute, in additions, multiplications and the like: what they share out among them, and what each
    of them does alike."""

    shared_out: float = 0.0
    repeated: tuple[Repeated, ...] = ()

    @property
    def repeated_amount(self) -> float:
        """All that each of them does alike."""
        return sum(one.amount for one in self.repeated)

    def __add__(self, other: "Work") -> "Work":
        return Work(self.shared_out + other.shared_out, self.repeated + other.repeated)

    def times(self, count: int) -> "Work":
        """The same so many times."""
        repeated = (dataclasses.replace(one, amount=one.amount * count) for one in self.repeated)
        return Work(self.shared_out * count, tuple(repeated))

    def at(self, line: str) -> "Work":
        """The same, with a line for what has none."""
        repeated = (one if one.line else dataclasses.replace(one, line=line) for one in self.repeated)
        return Work(self.shared_out, tuple(repeated))
