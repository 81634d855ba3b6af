"""Shared by the package adapters: optional imports, states of fixed dtypes, plain observations."""

import contextlib
import dataclasses
import functools
import importlib
import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.envs.base import Environment
from fragmenta.errors import ConfigError
from fragmenta_core.spaces import Box, Dict, Discrete, MultiDiscrete, Space

NO_LIMIT = 1 << 30
"""A time limit that no episode reaches."""


def import_package(module: str, extra: str) -> Any:
    """Import a module of an optional package; if it is missing, the error says which extra to install."""
    with quiet():
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"this environment needs {extra}: pip install 'fragmenta[{extra}]'") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress a package's output and warnings, and restore the standard streams, which one package replaces."""
    streams = sys.stdout, sys.stderr, sys.__stdout__
    sys.stdout = sys.__stdout__ = io.StringIO()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout, sys.stderr, sys.__stdout__ = streams  # pyright: ignore[reportAttributeAccessIssue]


def fixed_types(state: Any, like: Any = None) -> Any:
    """A state as arrays with the shapes and dtypes of `like`, or its own: packages let them drift, a loop must not."""

    def cast(leaf: Any, model: Any) -> jax.Array:
        leaf, model = jnp.asarray(leaf), jnp.asarray(model)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return jnp.asarray(leaf, model.dtype).reshape(model.shape)

    return jax.tree.map(cast, state, state if like is None else like)


def plain(observation: Any) -> Any:
    """An observation as an array or dictionary of arrays, also from named tuples and dataclasses; floats as float32."""
    if hasattr(observation, "_asdict"):
        observation = observation._asdict()
    elif dataclasses.is_dataclass(observation):
        observation = {field.name: getattr(observation, field.name) for field in dataclasses.fields(observation)}
    if isinstance(observation, Mapping):
        return {name: plain(part) for name, part in observation.items()}
    array = jnp.asarray(observation)
    return jnp.asarray(array, jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else array.dtype)


@functools.cache
def observation_shapes(env: Environment) -> Any:
    """The shapes and dtypes that `env.observe` returns, found without running it."""
    return jax.eval_shape(lambda: env.observe(env.initial(jax.random.key(0))))


def space_of(shapes: Any, low: float | None = None, high: float | None = None) -> Space:
    """The space of observations with these shapes and dtypes, with the dtype's bounds unless others are given."""
    if isinstance(shapes, dict):
        return Dict(tuple((name, space_of(part)) for name, part in shapes.items()))
    if jnp.issubdtype(shapes.dtype, jnp.floating):
        lowest, highest = -float("inf"), float("inf")
    elif shapes.dtype == jnp.bool_:
        lowest, highest = 0, 1
    else:
        lowest, highest = jnp.iinfo(shapes.dtype).min, jnp.iinfo(shapes.dtype).max
    return Box(
        float(lowest if low is None else low), float(highest if high is None else high), shapes.shape, str(shapes.dtype)
    )


def action_space_of(space: Any) -> Space:
    """Our space for a Gym-style one, with `n`, `num_categories`, or `low` and `high`."""
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if hasattr(space, "num_categories"):
        return MultiDiscrete(tuple(int(count) for count in space.num_categories))
    return Box(float(np.min(space.low)), float(np.max(space.high)), tuple(space.shape))
