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
class Work:
    """Operations of the whole program: those that replicas share out among them, and those that each of them does."""

    shared_out: float = 0.0
    repeated: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.shared_out + other.shared_out, self.repeated + other.repeated)

    def times(self, count: int) -> "Work":
        """The same so many times."""
        return Work(self.shared_out * count, self.repeated * count)
