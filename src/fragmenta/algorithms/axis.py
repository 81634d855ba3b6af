"""Dimensions of a training loop along which it may be divided among replicas."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Axis:
    """A dimension by name: what is on it, how long it is, and the algorithm and environment at another length.

    The last is asked for shapes only, to find where in the state the axis lies. `hidden` says that not all that is on
    it can be followed from the state: what an environment makes for agents it makes from a state without that axis.
    """

    name: str
    noun: str
    size: int
    resized: Callable[[int], tuple[Any, Any]]
    hidden: bool = False
