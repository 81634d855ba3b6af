"""Axes along which a training loop can be divided."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Axis:
    """A named axis: what lies along it, its length, and the algorithm and environment resized to another length.

    `resized` is evaluated for shapes only, to find where the axis lies in the state. `hidden` means that the state does
    not show everything along the axis: environments compute values per agent from a state without an agent axis.
    """

    name: str
    noun: str
    size: int
    resized: Callable[[int], tuple[Any, Any]]
    hidden: bool = False
