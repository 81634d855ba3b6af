"""Observation and action spaces as plain data, the same for the environments of every package."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

MASK = "action_mask"
"""The part of a dictionary of observations that says which actions are legal: one entry for each, 0 if it is not."""


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Integers 0 to n - 1."""

    n: int


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several integers at once, the i-th from 0 to choices[i] - 1."""

    choices: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of a shape, every entry between low and high."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def is_image(self) -> bool:
        """Whether it is an image, or a stack of images: bytes in at least three dimensions."""
        return self.dtype == "uint8" and len(self.shape) >= 3


@dataclasses.dataclass(frozen=True, init=False)
class Dict:
    """Several named spaces, given as a dictionary or as pairs; its observations are dictionaries."""

    spaces: tuple[tuple[str, "Space"], ...]

    def __init__(self, spaces: "Mapping[str, Space] | Iterable[tuple[str, Space]]") -> None:
        object.__setattr__(self, "spaces", tuple(spaces.items() if isinstance(spaces, Mapping) else spaces))


Space = Discrete | MultiDiscrete | Box | Dict


def to_json(space: Space) -> dict[str, Any]:
    """A space as plain lists and dictionaries, to send to another process."""
    if isinstance(space, Dict):
        return {"kind": "Dict", "spaces": [[name, to_json(part)] for name, part in space.spaces]}
    return {"kind": type(space).__name__, **dataclasses.asdict(space)}


def from_json(data: dict[str, Any]) -> Space:
    """The inverse of `to_json`."""
    kind = data["kind"]
    if kind == "Dict":
        return Dict(tuple((name, from_json(part)) for name, part in data["spaces"]))
    if kind == "Discrete":
        return Discrete(data["n"])
    if kind == "MultiDiscrete":
        return MultiDiscrete(tuple(data["choices"]))
    return Box(data["low"], data["high"], tuple(data["shape"]), data["dtype"])


def leaves(space: Space) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of every array in a value of the space, in the order of JAX pytrees."""
    if isinstance(space, Dict):
        return [
            (f"{name}.{rest}".rstrip("."), shape, dtype)
            for name, part in sorted(space.spaces)
            for rest, shape, dtype in leaves(part)
        ]
    if isinstance(space, Box):
        return [("", space.shape, space.dtype)]
    return [("", () if isinstance(space, Discrete) else (len(space.choices),), "int32")]


def assemble(space: Space, arrays: Iterator[Any]) -> Any:
    """A value of the space from its arrays, in the order of `leaves`."""
    if isinstance(space, Dict):
        return {name: assemble(part, arrays) for name, part in sorted(space.spaces)}
    return next(arrays)


def random_actions(space: Space, shape: tuple[int, ...]) -> np.ndarray:
    """An array of that shape of random actions, the same at every call; unbounded ones are within a thousand."""
    rng = np.random.default_rng(0)
    if isinstance(space, Discrete):
        return rng.integers(space.n, size=shape).astype(np.int32)
    if isinstance(space, MultiDiscrete):
        return rng.integers(space.choices, size=(*shape, len(space.choices))).astype(np.int32)
    assert isinstance(space, Box)
    return rng.uniform(max(space.low, -1e3), min(space.high, 1e3), (*shape, *space.shape)).astype(np.float32)


def as_vector(mask: Any) -> np.ndarray:
    """A mask of legal actions as one vector; of `MultiDiscrete` actions it may be a tuple of arrays."""
    parts = [np.ravel(part) for part in mask] if isinstance(mask, tuple) else [np.ravel(mask)]
    return np.concatenate(parts).astype(np.int8)


def legal_ones(space: Space, mask: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The actions, with the next legal one in place of each that is illegal; as they are where none is legal."""
    if not isinstance(space, Discrete | MultiDiscrete):
        return actions
    choices = (space.n,) if isinstance(space, Discrete) else space.choices
    columns = actions.reshape(-1, len(choices))
    masks = np.split(mask.reshape(len(columns), -1), np.cumsum(choices)[:-1], axis=1)
    chosen = []
    for column, legal in zip(columns.T, masks, strict=True):
        following = (column[:, None] + np.arange(legal.shape[1])) % legal.shape[1]
        first = np.argmax(np.take_along_axis(legal, following, axis=1) > 0, axis=1)
        chosen.append(np.take_along_axis(following, first[:, None], axis=1)[:, 0])
    return np.stack(chosen, axis=1).reshape(actions.shape).astype(actions.dtype)
