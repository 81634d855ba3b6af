"""What an algorithm says about itself: which functions are stages.

Outside Fragmenta a stage is ordinary JAX: `jax.jit` under a prefixed name.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

STAGE_PREFIX = "stage:"
PER_ENVIRONMENT = "per_environment"
"""The attribute of a function for the host that says that it does the same for every environment."""

Function = TypeVar("Function", bound=Callable[..., Any])


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Fixed:
    """An argument that is part of the program, not of its data."""

    value: Any


def stage(function: Function) -> Function:
    """Mark a pure function or method as a part of the training loop that a policy can place.

    Arguments that are a bool or a string are part of the program, as `self` is.
    """

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_given, args), **{name: _given(x) for name, x in kwargs.items()})

    named.__name__ = named.__qualname__ = STAGE_PREFIX + function.__name__
    compiled = jax.jit(named)

    @functools.wraps(function)
    def staged(*args: Any, **kwargs: Any) -> Any:
        return compiled(*map(_fixed, args), **{name: _fixed(x) for name, x in kwargs.items()})

    return cast(Function, staged)


def _fixed(x: Any) -> Any:
    return _Fixed(x) if isinstance(x, (bool, str)) else x


def _given(x: Any) -> Any:
    return x.value if isinstance(x, _Fixed) else x


def per_environment(function: Function) -> Function:
    """Say of a function of numpy arrays that it does the same for every environment, the first dimension."""
    setattr(function, PER_ENVIRONMENT, True)
    return function
