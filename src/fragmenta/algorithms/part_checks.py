"""Whether a user's optimizer, memory or network fits: found out by shapes alone, before anything is trained."""

from collections.abc import Callable
from typing import Any

import flax.errors
import jax
import jax.numpy as jnp

from fragmenta.algorithms.own_parts import SOME_OPTIMIZERS, FunctionPair, own_optimizer
from fragmenta.errors import ConfigError


def check_optimizer(optimizer: Any, rate: float) -> None:
    """Raise ConfigError unless the optimizer works with gradients and parameters alone."""
    made = own_optimizer(optimizer, rate)
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in (("kernel", (2, 3)), ("bias", (3,)))}
    try:
        changes = jax.eval_shape(lambda params: made.update(params, made.init(params), params)[0], params)
    except Exception as error:
        is_of_optax = isinstance(optimizer, str) and ":" not in optimizer
        if not is_of_optax and "required keyword-only argument" not in str(error):
            raise  # a mistake in the user's own code
        name = optimizer if isinstance(optimizer, str) else getattr(optimizer, "__name__", type(optimizer).__name__)
        problem = f"optimizer '{name}' needs more than gradients and parameters ({str(error).splitlines()[0]})"
        raise ConfigError(f"{problem}: choose {SOME_OPTIMIZERS}") from None
    if jax.tree.map(lambda x: x.shape, changes) != {name: x.shape for name, x in params.items()}:
        raise ConfigError(f"optimizer '{optimizer}' returns updates of other shapes than the parameters: keep them")


def check_cell(cell: Any, name: Any) -> None:
    """Raise ConfigError unless the memory of a step and its features have the shapes that they should have."""

    part = f"cell '{getattr(name, '__qualname__', name)}'"

    def step(memory: Any, x: Any) -> Any:
        params = cell.init(jax.random.key(0), memory, x)
        _check_collections(part, params)
        return cell.apply(params, memory, x)

    rows = [jax.ShapeDtypeStruct((2, size), "float32") for size in (cell.size, 3)]
    memory, features = _shapes(part, step, *rows)
    if memory.shape != (2, cell.size) or len(features.shape) != 2:
        problem = f"{part} returns {memory.shape} and {features.shape} for 2 rows"
        raise ConfigError(f"{problem}: expected the memory, (2, {cell.size}), and features, (2, any)")


def check_network(network: Any, name: Any, observation: Any) -> None:
    """Raise ConfigError unless the network makes one vector of each of these observations (arrays or shapes)."""
    part = f"network '{getattr(name, '__qualname__', name)}'"

    def features_of(key: jax.Array, observation: Any) -> Any:
        params = network.init(key, observation)
        if not isinstance(network, FunctionPair):
            _check_collections(part, params)
        return network.apply(params, observation)

    features = _shapes(part, features_of, jax.random.key(0), observation)
    rows = jax.tree.leaves(observation)[0].shape[0]
    if not hasattr(features, "shape") or len(features.shape) != 2 or features.shape[0] != rows:
        shape = getattr(features, "shape", jax.tree.structure(features))
        expected = f"one vector each: ({rows}, features)"
        raise ConfigError(f"{part} returns {shape} for {rows} observations, expected {expected}")
    if not jnp.issubdtype(features.dtype, jnp.floating):
        problem = f"{part} returns {features.dtype}, through which there are no gradients"
        raise ConfigError(f"{problem}: return numbers of a float type")


def checked_observation(shapes: Any, name: Any) -> Any:
    """What a user's function makes of an observation; ConfigError unless it is an array or a dictionary of arrays."""
    named = shapes.items() if isinstance(shapes, dict) else [("", shapes)]
    for part, shape in named:
        if isinstance(shape, dict):
            checked_observation(shape, name)
        elif not isinstance(shape, jax.ShapeDtypeStruct) or 0 in shape.shape:
            kind = getattr(shape, "shape", type(shape).__name__)
            problem = f"observation_function '{name}' returns {kind}{f' as {part}' if part else ''}"
            raise ConfigError(f"{problem}: return an array with numbers in it, or a dictionary of such arrays")
    return shapes


def _shapes(part: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The shapes of what a function of a user's module returns; ConfigError if the module draws random numbers."""
    try:
        return jax.eval_shape(function, *arguments)
    except (flax.errors.InvalidRngError, KeyError) as error:
        if isinstance(error, KeyError) and "RngStream" not in str(error):
            raise
        problem = f"{part} draws random numbers, as Dropout does ({str(error).split(' (')[0]})"
        raise ConfigError(f"{problem}: it gets none; use LayerNorm, or make Dropout deterministic") from None


def _check_collections(part: str, params: Any) -> None:
    """Raise ConfigError if a Flax module keeps more than parameters."""
    others = [collection for collection in params if collection != "params"]
    if others:
        problem = f"{part} keeps {', '.join(others)} besides its parameters, as BatchNorm does"
        raise ConfigError(f"{problem}: nothing would update them; use LayerNorm or GroupNorm")
