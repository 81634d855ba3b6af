"""Environments that are Python objects without a name: how other processes make them, or why only this one can."""

import base64
import dataclasses
import pickle
from typing import Any


@dataclasses.dataclass(frozen=True)
class Pickled:
    """A pickled function that makes an environment; every call restores the function first.

    Only this process and those that it starts, with their standard input or an inherited socket, get to see it.
    """

    data: bytes

    def __call__(self, **arguments: Any) -> Any:
        """Make an environment."""
        return pickle.loads(self.data)(**arguments)

    def to_json(self) -> str:
        """As text, to send to an environment process."""
        return base64.b64encode(self.data).decode()

    @staticmethod
    def from_json(text: str) -> "Pickled":
        """The inverse of `to_json`."""
        return Pickled(base64.b64decode(text))


@dataclasses.dataclass(frozen=True, eq=False)
class BoundHere:
    """A function that makes environments, or a single environment, that cannot be pickled: only this process has it."""

    source: Any
    reason: str
    """Why it cannot be pickled."""
    is_single: bool
    """Whether it is one environment, which exists already and belongs to the caller."""

    def __call__(self, **arguments: Any) -> Any:
        """Make an environment, or return the only one."""
        return self.source if self.is_single else self.source(**arguments)


Maker = Pickled | BoundHere


def itself(env: Any) -> Any:
    """The environment; pickled with it, this makes copies."""
    return env
