"""The decorators that mark an algorithm's functions as stages.

Outside Fragmenta a stage is ordinary JAX: `jax.jit` under a prefixed name.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

STAGE_PREFIX = "stage:"
PER_ENVIRONMENT = "per_environment"
"""Attribute of host functions that compute every environment independently of the others."""

Function = TypeVar("Function", bound=Callable[..., Any])


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Static:
    """A static argument: part of the program, not of its data."""

    value: Any


def stage(function: Function) -> Function:
    """Mark a pure function or method as a stage: a part of the training loop that a distribution policy can place.

    Bool and string arguments are static, as `self` is.
    """

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_from_static, args), **{name: _from_static(x) for name, x in kwargs.items()})

    body.__name__ = body.__qualname__ = STAGE_PREFIX + function.__name__
    compiled = jax.jit(body)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return compiled(*map(_to_static, args), **{name: _to_static(x) for name, x in kwargs.items()})

    return cast(Function, wrapper)


def _to_static(x: Any) -> Any:
    return _Static(x) if isinstance(x, (bool, str)) else x


def _from_static(x: Any) -> Any:
    return x.value if isinstance(x, _Static) else x


def per_environment(function: Function) -> Function:
    """Mark a numpy function that computes every environment (first dimension) independently of the others."""
    setattr(function, PER_ENVIRONMENT, True)
    return function
