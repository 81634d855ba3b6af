"""The entries of the table of operations, and helpers to define them."""

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
    """A function of `x` (and `y`) that is told the dimension `d` of the environments of `x`."""

    name: str
    apply: Callable[..., Any]
    """`apply(x, d)`, or `apply(x, y, d)` if there is a `second`."""
    kinds: tuple[str, ...] = (FLOAT,)
    """The supported kinds of `x`."""
    second: str = ""
    """The kind of `y`: the `same` shape and kind as x, an `index` per environment, or a shared `weight` or `key`."""
    exact: bool = False
    """The result is bitwise determined by its input, independent of the order of computation."""
    jumps: bool = False
    """Discontinuous: a rounding error in x may change the result by much more."""
    smooth: bool = True
    """It has finite derivatives in forward and reverse mode."""
    ranks: tuple[int, int] = (1, 4)
    forwards: bool = True
    """It has a forward-mode derivative."""
    slow: bool = False
    """It is slow to compile, so only the full suite runs it."""
    within: float = 1e-5
    """The tolerance, relative to the largest element."""


def entries(functions: dict[str, Callable[..., Any]], **flags: Any) -> tuple[Operation, ...]:
    """One entry per function, all with the same flags."""
    return tuple(Operation(name, function, **flags) for name, function in functions.items())


def along_axes(functions: dict[str, Callable[..., Any]], **flags: Any) -> tuple[Operation, ...]:
    """Two entries per function of `(x, axis)`: over the environments, and over another dimension."""
    operations: list[Operation] = []
    for name, function in functions.items():
        operations.append(Operation(f"{name} over the environments", function, **flags))
        operations.append(Operation(f"{name} over another", _over_another(function), **flags))
    return tuple(operations)


def with_all(functions: dict[str, Callable[..., Any]], **flags: Any) -> tuple[Operation, ...]:
    """Like `along_axes`, plus an entry over all dimensions at once (axis None)."""
    every = {f"{name} over all": _over_all(function) for name, function in functions.items()}
    return along_axes(functions, **flags) + entries(every, **flags)


def another(x: Any, d: int) -> int:
    """A dimension other than that of the environments, if there is one."""
    return (d + 1) % np.ndim(x)


def to_front(x: Any, d: int) -> Any:
    """The environments as the leading dimension."""
    return jnp.moveaxis(x, d, 0)


def rows(x: Any, d: int) -> Any:
    """A matrix with a row for each environment."""
    return to_front(x, d).reshape(x.shape[d], -1)


def per_element(function: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Apply a function of one element to each element."""
    for _ in range(np.ndim(x)):
        function = jax.vmap(function)
    return function(x, *others)


def _over_another(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, d: function(x, another(x, d))


def _over_all(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, d: function(x, None)
