"""Checks what environments return: what cannot be used is a fault, what is outside of its bounds is reported once."""

import reprlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragmenta_core.arrays import Arrays, Description
from fragmenta_core.bounds import Bounds, first_outside, is_news, warning
from fragmenta_core.faults import WrongValueError
from fragmenta_host.nan import has_nan, nan_text

Check = Callable[[np.ndarray, tuple[int, ...], bool], None]
_FLAG_TYPES = {bool, np.bool_}


def observation_checks(description: Description, arrays: Arrays) -> list[Check]:
    """For every array of an observation, a function that rejects values of one or several environments, given the shape
    of one, that do not match the space; if thorough, it also warns of the first that is outside of its bounds."""
    leaves = zip(description.observation_leaves, description.observation_bounds, strict=True)
    return [_check(*leaf, bounds, arrays.warned[i : i + 1]) for i, (leaf, bounds) in enumerate(leaves)]


def _check(name: str, shape: tuple[int, ...], dtype: str, bounds: Bounds, warned: np.ndarray) -> Check:
    holds_nan: dict[Any, bool] = {}  # by accepted type; looking it up is cheaper than asking the type
    low, high = bounds.limits(dtype)
    within = np.logical_and.reduce
    # Comparing each entry also finds NaN; without bounds, a reduction does so faster.
    is_bounded = bool(np.isfinite(low).any() or np.isfinite(high).any()) and not bounds.spans(dtype)

    def check(array: np.ndarray, array_shape: tuple[int, ...], thorough: bool) -> None:
        if array_shape != shape:
            raise WrongValueError(f"returned {name} of shape {array_shape}, expected {shape}")
        may_be_nan = holds_nan.get(array.dtype)
        if may_be_nan is None:
            boolean = array.dtype.kind == "b" and dtype[0] in "iu"
            if not boolean and not np.can_cast(array.dtype, dtype, "same_kind"):
                raise WrongValueError(f"returned {name} of type {array.dtype}, expected {dtype}")
            may_be_nan = holds_nan[array.dtype] = array.dtype.kind == "f"
        if thorough and is_bounded and not warned[0]:
            if within((array >= low) & (array <= high), axis=None):
                return
            if not has_nan(array):
                warned[0] = True
                _warn(first_outside(name, array, bounds, dtype, leading=array.ndim - len(shape)))
                return
        if may_be_nan and has_nan(array):
            raise WrongValueError(nan_text(name))

    return check


def _warn(what: str) -> None:
    """Say it once, however often these environments are started."""
    line = warning(what)
    if is_news(line):
        print(line, file=sys.stderr, flush=True)


def check_rewards(rewards: Sequence[Any], shape: tuple[int, ...]) -> None:
    """Reject rewards of several environments, given the shape of one, that are not numbers."""
    array = np.array(rewards)
    if array.dtype.kind not in "fiub" or array.shape[1:] != shape:
        expected = f"numbers of shape {shape}" if shape else "a number"
        raise WrongValueError(f"returned reward {short_text(rewards[0])}, expected {expected}")


def check_flags(terminated: tuple[Any, ...], truncated: tuple[Any, ...]) -> None:
    """Reject flags of several environments that are neither true nor false."""
    if set(map(type, terminated + truncated)) <= _FLAG_TYPES:
        return
    for name, values in (("terminated", terminated), ("truncated", truncated)):
        array = np.array(values)
        if array.dtype.kind not in "biuf" or array.ndim != 1:
            raise WrongValueError(f"returned {name} {short_text(values[0])}, expected True or False")


def short_text(value: Any) -> str:
    """A value in a message, shortened."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return reprlib.repr(value)
