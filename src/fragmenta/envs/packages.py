"""What the adapters of other packages share: imports that may fail, states of fixed types, plain observations."""

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
"""A number of steps that no episode reaches."""


def load(module: str, extra: str) -> Any:
    """The module of an optional package; where it is missing, one line says which extra to install."""
    with quiet():
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"this environment needs {extra}: pip install 'fragmenta[{extra}]'") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop what a package prints and warns of, and put back the streams, which one of them replaces."""
    kept = sys.stdout, sys.stderr, sys.__stdout__
    sys.stdout = sys.__stdout__ = io.StringIO()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout, sys.stderr, sys.__stdout__ = kept  # pyright: ignore[reportAttributeAccessIssue]


def fixed_types(state: Any, like: Any = None) -> Any:
    """A state as arrays with the shapes and types of `like`, or its own: packages let them drift, a loop must not."""

    def fixed(leaf: Any, model: Any) -> jax.Array:
        leaf, model = jnp.asarray(leaf), jnp.asarray(model)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return jnp.asarray(leaf, model.dtype).reshape(model.shape)

    return jax.tree.map(fixed, state, state if like is None else like)


def plain(observation: Any) -> Any:
    """An observation as an array or a dictionary of them, named tuples and dataclasses too; floats become float32."""
    if hasattr(observation, "_asdict"):
        observation = observation._asdict()
    elif dataclasses.is_dataclass(observation):
        observation = {field.name: getattr(observation, field.name) for field in dataclasses.fields(observation)}
    if isinstance(observation, Mapping):
        return {name: plain(part) for name, part in observation.items()}
    array = jnp.asarray(observation)
    return jnp.asarray(array, jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else array.dtype)


@functools.cache
def shown_by(env: Environment) -> Any:
    """The shapes and types of what `env.observe` returns, found without running it."""
    return jax.eval_shape(lambda: env.observe(env.initial(jax.random.key(0))))


def space_of(shown: Any, low: float | None = None, high: float | None = None) -> Space:
    """The space of observations of these shapes and types, within the types' bounds unless others are given."""
    if isinstance(shown, dict):
        return Dict(tuple((name, space_of(part)) for name, part in shown.items()))
    if jnp.issubdtype(shown.dtype, jnp.floating):
        lowest, highest = -float("inf"), float("inf")
    elif shown.dtype == jnp.bool_:
        lowest, highest = 0, 1
    else:
        lowest, highest = jnp.iinfo(shown.dtype).min, jnp.iinfo(shown.dtype).max
    return Box(
        float(lowest if low is None else low), float(highest if high is None else high), shown.shape, str(shown.dtype)
    )


def action_space_of(space: Any) -> Space:
    """Ours for a space in the manner of Gym, with `n`, `num_categories` or `low` and `high`."""
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if hasattr(space, "num_categories"):
        return MultiDiscrete(tuple(int(count) for count in space.num_categories))
    return Box(float(np.min(space.low)), float(np.max(space.high)), tuple(space.shape))
