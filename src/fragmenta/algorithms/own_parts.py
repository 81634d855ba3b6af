"""Parts that a user brings: networks and optimizers, as objects or as `module:name`."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from fragmenta.errors import ConfigError, closest, load_named
from fragmenta_core.faults import UnusableError
from fragmenta_core.loading import construct

ADAM_EPSILON = 1e-5
"""Adam's, as is usual in reinforcement learning: larger than its default."""


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
    """The optimizer at that learning rate: a name in Optax, or a function of the rate, also as `module:function`."""
    if optimizer == "adam":
        return optax.adam(rate, eps=ADAM_EPSILON)
    if isinstance(optimizer, str) and ":" not in optimizer:
        make = getattr(optax, optimizer, None) or getattr(optax.contrib, optimizer, None)
        if not callable(make) or not _takes_rate(make):
            match = closest(optimizer, [name for name in dir(optax) if _takes_rate(getattr(optax, name))])
            hint = f"did you mean '{match}'? " if match else ""
            choices = "choose one of Optax, such as adam, adamw, rmsprop, sgd or lion, or module:function for your own"
            raise ConfigError(f"unknown optimizer '{optimizer}': {hint}{choices}")
    else:
        make = load_named("optimizer", optimizer) if isinstance(optimizer, str) else optimizer
    made = make(rate)
    if not isinstance(made, optax.GradientTransformation):
        kind = type(made).__name__
        raise ConfigError(f"optimizer '{optimizer}' makes {kind}: it must return an Optax transformation")
    return made


def check_network(network: Any, name: Any, observation: Any) -> None:
    """Raise ConfigError unless the network makes one vector of each of these observations (arrays or shapes)."""

    def features_of(key: jax.Array, observation: Any) -> Any:
        return network.apply(network.init(key, observation), observation)

    features = jax.eval_shape(features_of, jax.random.key(0), observation)
    rows = jax.tree.leaves(observation)[0].shape[0]
    if not hasattr(features, "shape") or len(features.shape) != 2 or features.shape[0] != rows:
        shape = getattr(features, "shape", jax.tree.structure(features))
        expected = f"one vector each: ({rows}, features)"
        raise ConfigError(f"network '{name}' returns {shape} for {rows} observations, expected {expected}")


def own_function(name: str, function: Any) -> Callable[..., Any]:
    """The function that a user named as `module:function`, or passed."""
    loaded = load_named(name, function) if isinstance(function, str) else function
    if not callable(loaded):
        raise ConfigError(f"{name} is '{function}', which is {type(loaded).__name__}: it must be a function")
    return loaded


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
    code = getattr(make, "__code__", None)
    return code is not None and code.co_varnames[:1] == ("learning_rate",)
