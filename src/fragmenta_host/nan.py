"""Finds NaN in what environments return: an agent that learns from it is lost, and the cause hard to see afterwards."""

from collections.abc import Iterable

import numpy as np

from fragmenta_core.faults import Fault

SMALL = 8192
"""Up to this size a product of an array with itself, which is NaN if an entry is, takes half as long as a reduction;
of larger arrays it might use several threads."""


def has_nan(array: np.ndarray) -> bool:
    """Whether any element is NaN, in one pass without allocation."""
    if array.dtype.kind != "f":
        return False
    total = np.vdot(array, array) if array.size <= SMALL else np.minimum.reduce(array, axis=None)
    return bool(total != total)


def nan_text(name: str) -> str:
    """What is wrong with a value of that name."""
    return f"returned NaN in its {name}, expected numbers"


def nan_faults(where: str, arrays: Iterable[tuple[str, np.ndarray]], first: int) -> list[Fault]:
    """A fault for every environment with NaN in one of these named arrays, whose rows begin with environment `first`;
    `where` is what it was doing."""
    faults: dict[int, Fault] = {}
    for name, array in arrays:
        if has_nan(array):
            for row in np.flatnonzero(np.isnan(array.reshape(len(array), -1)).any(axis=1)):
                index = first + int(row)
                faults.setdefault(index, Fault(index, f"{where} {nan_text(name)}"))
    return list(faults.values())
