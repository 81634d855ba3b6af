"""Gymnasium's spaces, which other packages use as well: conversion to plain data, and of values to arrays."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from fragmenta_core.bounds import Bounds, bounds_of
from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from fragmenta_host.values import short_text


def convert(space: spaces.Space) -> Space:
    """A Gymnasium space as plain data."""
    if isinstance(space, spaces.Box):
        kind = "float32" if space.dtype.kind == "f" else "uint8" if space.dtype == np.uint8 else "int32"
        return Box(float(np.min(space.low)), float(np.max(space.high)), tuple(space.shape), kind)
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.ravel()))
    if isinstance(space, spaces.MultiBinary):
        return Box(0.0, 1.0, tuple(space.shape), "int32")
    if isinstance(space, spaces.Dict):
        return Dict(tuple((name, convert(part)) for name, part in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return Dict(tuple((str(i), convert(part)) for i, part in enumerate(space.spaces)))
    raise UnusableError(f"space {space} has no fixed array shape: wrap the environment so that it has one")


def action_space(space: spaces.Space) -> Space:
    """An action space as plain data; it must have a single part."""
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * int(np.prod(space.shape)))
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        raise UnusableError(f"action space {space} has several parts: wrap the environment so that it has one")
    return convert(space)


def exact_bounds(space: spaces.Space) -> tuple[Bounds, ...]:
    """The bounds of each array of a space, entry by entry."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: dict[Any, Any] = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        return tuple(bounds for key in sorted(parts, key=str) for bounds in exact_bounds(parts[key]))
    if isinstance(space, spaces.Box):
        return (Bounds(*(_compact(limit.astype(float)) for limit in (space.low, space.high))),)
    if isinstance(space, spaces.Discrete):
        return (Bounds(0, int(space.n) - 1, int(space.start)),)
    return tuple(bounds_of(convert(space)))


def _compact(limit: np.ndarray) -> Any:
    """One number if all entries are equal, as they usually are, otherwise nested lists."""
    uniform = limit.size > 0 and bool((limit == limit.flat[0]).all())
    return float(limit.flat[0]) if uniform else limit.tolist()


def mismatch(space: spaces.Space, value: Any, name: str = "observation") -> str | None:
    """How a value differs from the structure of its space: a missing key, a wrong length, something without numbers."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping):
            return f"returned {short_text(value)} as its {name}, expected a dictionary with {', '.join(space.spaces)}"
        missing = [key for key in space.spaces if key not in value]
        if missing:
            return f"returned its {name} without '{missing[0]}', expected {', '.join(space.spaces)}"
        inner = (mismatch(part, value[key], f"{name}['{key}']") for key, part in space.spaces.items())
        return next(filter(None, inner), None)
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            return f"returned {short_text(value)} as its {name}, expected a tuple of {len(space.spaces)}"
        inner = (mismatch(part, value[i], f"{name}[{i}]") for i, part in enumerate(space.spaces))
        return next(filter(None, inner), None)
    kind = np.asarray(value).dtype
    if kind.kind == "O":
        return f"returned {short_text(value)} as its {name}, expected {space}"
    return None if kind.kind in "biuf" else f"returned {name} of type {kind}, expected {space.dtype}"


def flattener(space: spaces.Space) -> Callable[[Any], list[Any]]:
    """A function from an observation to the list of its arrays, in the order of the description."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts: dict[Any, Any] = dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        inner = [(key, flattener(parts[key])) for key in sorted(parts, key=str)]
        return lambda value: [leaf for key, flat in inner for leaf in flat(value[key])]
    if isinstance(space, spaces.Discrete) and space.start != 0:
        return lambda value: [value - space.start]
    if isinstance(space, spaces.MultiDiscrete):
        # Also for a batch, whose first dimension stays.
        ndim = len(space.shape)
        return lambda value: [np.reshape(value - space.start, (*np.shape(value)[: np.ndim(value) - ndim], -1))]
    return single_array


def single_array(value: Any) -> list[Any]:
    """The list of arrays of an observation that is one array."""
    return [value]


def gatherer(space: spaces.Space) -> Callable[[Sequence[Any]], Iterable[Sequence[Any]]]:
    """A function that regroups several observations: one sequence per array of the description."""
    flat = flattener(space)
    return (lambda values: [values]) if flat is single_array else lambda values: zip(*map(flat, values), strict=True)


def action_maker(space: spaces.Space) -> Callable[[np.ndarray], Any]:
    """A function from rows to the environment's actions, for all rows at once; boxes are clipped to their bounds."""
    if isinstance(space, spaces.Discrete):
        return lambda rows: (rows + int(space.start)).tolist()
    if isinstance(space, spaces.MultiDiscrete):
        return lambda rows: (rows.reshape(len(rows), *space.shape) + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return lambda rows: rows.reshape(len(rows), *space.shape).astype(space.dtype)
    assert isinstance(space, spaces.Box)
    return lambda rows: np.clip(rows, space.low, space.high).astype(space.dtype, copy=False)
