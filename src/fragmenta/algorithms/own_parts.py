"""Parts that a user brings: networks and optimizers, as objects or as `module:name`."""

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import optax

from fragmenta.errors import ConfigError, closest, load_named
from fragmenta.nn.memory import CELLS, NO_CELL, OwnCell, memory_cell
from fragmenta_core.faults import UnusableError
from fragmenta_core.loading import construct

ADAM_EPSILON = 1e-5
"""Adam's, as is usual in reinforcement learning: larger than its default."""


SOME_OPTIMIZERS = "one of Optax, such as adam, adamw, rmsprop, sgd or lion, or module:function for your own"


class FunctionPair(NamedTuple):
    """A network as two functions."""

    init: Callable[[Any, Any], Any]
    apply: Callable[[Any, Any], Any]


def own_network(network: Any) -> Any:
    """The network that a user named or passed: a Flax module (linen or nnx), its class, or a pair (init, apply)."""
    name = network if isinstance(network, str) else getattr(network, "__qualname__", repr(network))
    part: Any = network
    if isinstance(network, str):
        part = load_named("network", network, lambda part: callable(part) or _is_pair(part))
    if _is_pair(part):
        return FunctionPair(*part)
    nnx = sys.modules.get("flax.nnx")
    if nnx and isinstance(part, type) and issubclass(part, nnx.Module):
        return nnx.bridge.to_linen(part)
    if isinstance(part, type):
        try:
            part = construct(part)
        except UnusableError as error:
            raise ConfigError(f"network '{name}': {error}: give every argument a default") from None
    if not callable(getattr(part, "init", None)) or not callable(getattr(part, "apply", None)):
        expected = "a Flax module or a pair of functions (init, apply)"
        raise ConfigError(f"network '{name}' is {type(part).__name__}, not {expected}")
    return part


def own_optimizer(optimizer: Any, rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    """The optimizer at that learning rate: a name in Optax, or a function of the rate, also as `module:function`. A
    transformation is taken as it is, with a rate of its own."""
    if optimizer == "adam":
        return optax.adam(rate, eps=ADAM_EPSILON)
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer
    if isinstance(optimizer, str) and ":" not in optimizer:
        make = getattr(optax, optimizer, None) or getattr(optax.contrib, optimizer, None)
        if not callable(make) or not _takes_rate(make):
            match = closest(optimizer, [name for name in dir(optax) if _takes_rate(getattr(optax, name))])
            hint = f"did you mean '{match}'? " if match and not make else ""
            kind, why = ("", " does not start from a learning rate") if make else ("unknown ", "")
            raise ConfigError(f"{kind}optimizer '{optimizer}'{why}: {hint}choose {SOME_OPTIMIZERS}")
    else:
        make = load_named("optimizer", optimizer) if isinstance(optimizer, str) else optimizer
    made = of_one_argument("optimizer", optimizer, make)(rate) if callable(make) else make
    if not isinstance(made, optax.GradientTransformation):
        kind = type(made).__name__
        raise ConfigError(f"optimizer '{optimizer}' makes {kind}: it must return an Optax transformation")
    return made


def own_cell(cell: Any, units: int, window: int, compute: str) -> Any:
    """The memory of that name, or the user's: a cell of Flax, or a module from memory and inputs to both, which says
    how many numbers it remembers; as an object, a class that takes the units, or `module:Class`."""
    if isinstance(cell, str) and ":" not in cell:
        if cell in CELLS:
            return memory_cell(cell, units, window, compute)
        raise ConfigError(f"cell is '{cell}': choose from {NO_CELL}, {', '.join(CELLS)}, or module:Class for your own")
    part: Any = load_named("cell", cell) if isinstance(cell, str) else cell
    if isinstance(part, type):
        try:
            part = construct(part, units)
        except UnusableError as error:
            raise ConfigError(f"cell '{cell}': {error}: it is made with its units alone") from None
    if isinstance(part, nn.RNNCellBase) or (
        isinstance(part, nn.Module) and isinstance(getattr(part, "size", None), int)
    ):
        return OwnCell(part)
    expected = "a cell of Flax, or a Flax module with a size and __call__(memory, x) -> (memory, features)"
    raise ConfigError(f"cell '{cell}' is {type(part).__name__}, not {expected}")


def own_function(name: str, function: Any) -> Callable[..., Any]:
    """The function that a user named as `module:function`, or passed."""
    loaded = load_named(name, function) if isinstance(function, str) else function
    if not callable(loaded):
        raise ConfigError(f"{name} is '{function}', which is {type(loaded).__name__}: it must be a function")
    return of_one_argument(name, function, loaded)


def of_one_argument(kind: str, name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, unless it cannot be called with one argument."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function  # in C, without a signature
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigError(f"{kind} '{name}' takes {signature}: it is called with one argument") from None
    return function


def apply_to_rows(function: Callable[[Any], Any], tree: Any, axes: int) -> Any:
    """Apply a function to every entry of so many leading axes."""
    for _ in range(axes):
        function = jax.vmap(function)
    return function(tree)


def checked_rewards(reward: Any, expected: jax.Array, name: Any) -> jax.Array:
    """Rewards of a user's function as floats; ConfigError unless their shape is as expected."""
    if getattr(reward, "shape", None) != expected.shape:
        shape = getattr(reward, "shape", jax.tree.structure(reward))
        raise ConfigError(f"reward_function '{name}' returns {shape} for {expected.shape} rewards: return one number")
    return reward.astype(expected.dtype)


def _is_pair(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and all(map(callable, part))


def _takes_rate(make: Any) -> bool:
    try:
        return next(iter(inspect.signature(make).parameters), "") == "learning_rate"
    except (TypeError, ValueError):
        return False
