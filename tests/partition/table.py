"""What an entry of the table of operations says, and what the entries share."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FLOAT, INT, BOOL, KEY = "float", "int", "bool", "key"
NUMBERS = (FLOAT, INT)
PLAIN = (FLOAT, INT, BOOL)


@dataclasses.dataclass(frozen=True)
class Operation:
    """A function of `x` (and of `y`), told that the environments of `x` are its dimension `d`."""

    name: str
    apply: Callable[..., Any]
    """`apply(x, d)`, or `apply(x, y, d)` if there is a `second`."""
    kinds: tuple[str, ...] = (FLOAT,)
    """What `x` may hold."""
    second: str = ""
    """What `y` is: the `same` as x in shape and kind, an `index` of each environment, a shared `weight` or `key`."""
    exact: bool = False
    """The result has the bits of its input, in whatever order it is computed."""
    jumps: bool = False
    """The last digit of a fraction in x may change the result by more than a last digit."""
    smooth: bool = True
    """It has a derivative in both directions, which is finite."""
    ranks: tuple[int, int] = (1, 4)
    forwards: bool = True
    """Its derivative can be taken forwards."""
    slow: bool = False
    """It takes long to compile, so that only the full suite has it."""
    within: float = 1e-5
    """How near results are, relative to the largest."""


def entries(functions: dict[str, Callable[..., Any]], **flags: Any) -> tuple[Operation, ...]:
    """One entry per function, all with the same flags."""
    return tuple(Operation(name, function, **flags) for name, function in functions.items())


def along_axes(functions: dict[str, Callable[..., Any]], **flags: Any) -> tuple[Operation, ...]:
    """Functions of `(x, axis)`: one entry over the environments, one over another dimension."""
    found: list[Operation] = []
    for name, function in functions.items():
        found.append(Operation(f"{name} over the environments", function, **flags))
        found.append(Operation(f"{name} over another", _over_another(function), **flags))
    return tuple(found)


def with_all(functions: dict[str, Callable[..., Any]], **flags: Any) -> tuple[Operation, ...]:
    """As `along_axes`, and one entry over all dimensions at once, for which the axis is None."""
    every = {f"{name} over all": _over_all(function) for name, function in functions.items()}
    return along_axes(functions, **flags) + entries(every, **flags)


def another(x: Any, d: int) -> int:
    """A dimension that is not that of the environments, if there is one."""
    return (d + 1) % np.ndim(x)


def to_front(x: Any, d: int) -> Any:
    """The environments as rows."""
    return jnp.moveaxis(x, d, 0)


def rows(x: Any, d: int) -> Any:
    """A matrix with a row for each environment."""
    return to_front(x, d).reshape(x.shape[d], -1)


def per_element(function: Callable[..., Any], x: Any, *more: Any) -> Any:
    """A function of one element for each of them."""
    for _ in range(np.ndim(x)):
        function = jax.vmap(function)
    return function(x, *more)


def _over_another(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, d: function(x, another(x, d))


def _over_all(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, d: function(x, None)
