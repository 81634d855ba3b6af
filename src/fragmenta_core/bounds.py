"""Bounds of the values that a space contains, and the search for values outside of them."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from fragmenta_core.spaces import Box, Dict, Discrete, Space

TOLERANCE = 1e-4
"""How far a float may be outside of its bounds: they are often computed in another precision."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The lowest and highest values of one array; one number for all entries, or nested lists with one for each."""

    low: Any
    high: Any
    start: int = 0
    """Added to values in messages: what the environment calls zero."""

    def limits(self, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """What values of this type are compared with."""
        slack = TOLERANCE if dtype.startswith("float") else 0.0
        kind = dtype if slack else "float64"
        return (np.asarray(self.low) - slack).astype(kind), (np.asarray(self.high) + slack).astype(kind)

    def spans(self, dtype: str) -> bool:
        """Whether every value of this type is within the bounds."""
        if dtype.startswith("float"):
            return False
        info = np.iinfo(dtype)
        return bool(np.all(np.asarray(self.low) <= info.min) and np.all(np.asarray(self.high) >= info.max))

    def with_zero(self) -> "Bounds":
        """These bounds, extended to zero: the value of agents that have dropped out of a team."""
        return dataclasses.replace(self, low=np.minimum(self.low, 0).tolist(), high=np.maximum(self.high, 0).tolist())


def bounds_of(space: Space) -> list[Bounds]:
    """The bounds of every array in a value of the space, in the order of `leaves`."""
    if isinstance(space, Dict):
        return [bounds for _, part in sorted(space.spaces) for bounds in bounds_of(part)]
    if isinstance(space, Box):
        return [Bounds(space.low, space.high)]
    if isinstance(space, Discrete):
        return [Bounds(0, space.n - 1)]
    return [Bounds(0, [count - 1 for count in space.choices])]


def outside(array: np.ndarray, bounds: Bounds, dtype: str) -> np.ndarray:
    """Which entries are outside of the bounds; NaN is not."""
    low, high = bounds.limits(dtype)
    return (array < low) | (array > high)


_EXAMPLE = re.compile(r"an environment returned \S+ in its (observation(?: '[^']*')?)(?:\[[^]]*\])?(, expected .*)")
_reported: set[str] = set()
_ALL = "all"


def warning(outside_text: str) -> str:
    """The line about a value outside of its bounds, as `first_outside` describes it."""
    return f"fragmenta: an environment returned {outside_text}; 'fragmenta check-env' counts how often"


def is_news(line: str) -> bool:
    """Whether to show a line: of the warnings about the same bounds only the first, whichever value it has found and
    whichever process it comes from."""
    match = _EXAMPLE.search(line)
    if match is None:
        return True
    subject = "".join(match.groups())
    if _ALL in _reported or subject in _reported:
        return False
    _reported.add(subject)
    return True


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Within this context no warning is news: the caller counts the values itself."""
    _reported.add(_ALL)
    try:
        yield
    finally:
        _reported.discard(_ALL)


def first_outside(name: str, array: np.ndarray, bounds: Bounds, dtype: str, leading: int) -> str:
    """The first entry outside of the bounds as text: its place after `leading` dimensions, and what was expected."""
    position = tuple(int(i) for i in np.argwhere(np.atleast_1d(outside(array, bounds, dtype)))[0])
    value = np.atleast_1d(array)[position].item() + bounds.start
    shape = np.broadcast_shapes(array.shape, np.shape(bounds.low), np.shape(bounds.high))
    low, high = (
        np.atleast_1d(np.broadcast_to(limit, shape))[position].item() + bounds.start
        for limit in (bounds.low, bounds.high)
    )
    place = list(position[leading:]) if array.ndim > leading else []
    part = name if name == "observation" else f"observation '{name}'"
    return f"{value:g} in its {part}{place or ''}, expected {low:g} to {high:g}"
