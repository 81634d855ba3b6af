"""Environments given as Python objects: a gymnasium.Env, its class, a function that makes one, a VectorEnv."""

import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

import cloudpickle

from fragmenta.envs.base import Environment
from fragmenta.envs.options import EnvOptions
from fragmenta.errors import ConfigError
from fragmenta_core import loading
from fragmenta_core.faults import UnusableError
from fragmenta_host.catalogue import Spec
from fragmenta_host.makers import BoundHere, Maker, Pickled, itself

ACCEPTED = "a name, a fragmenta.Environment, a gymnasium.Env, its class, a function that makes one, or a VectorEnv"

OF_VECTORS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
"""Arguments that Gymnasium's make_vec adds to those of a single environment."""


def spec_of(env: Any, options: EnvOptions) -> Spec:
    """How to make more environments like this one, in this process and in others; ConfigError if it is not one.

    It is described by name where possible, so that the run can be opened again without passing the environment.
    """
    if _is_gymnasium(env, "vector", "VectorEnv"):
        return _like_those_of(env, options)
    if _is_gymnasium(env, "Env"):
        return _like(env, options)
    if callable(env):
        return _made_by(env, options)
    raise ConfigError(f"env is {env!r:.80}, of type {type(env).__name__}: give {ACCEPTED}")


def fixed_count(env: Any, environment: Environment) -> int | None:
    """The number of environments, where the object that was given determines it."""
    spec = environment.host_pool.spec if environment.host_pool else None
    if _is_gymnasium(env, "vector", "VectorEnv"):
        return int(env.num_envs)
    return 1 if spec and spec.bound_here and spec.bound_here.is_single else None


def _is_gymnasium(env: Any, *path: str) -> bool:
    """Whether it is an instance of a class of Gymnasium, which is loaded if it is."""
    owner: Any = sys.modules.get("gymnasium")
    for name in path:
        owner = getattr(owner, name, None)
    return owner is not None and isinstance(env, owner)


def _like(env: Any, options: EnvOptions) -> Spec:
    """From its Gymnasium spec if that says how to make it, otherwise as copies of the object."""
    if options.arguments():
        raise ConfigError(f"env_args is for a class or a function, not for a {type(env).__name__} object: leave it out")
    spec = _from_gymnasium_spec(env.spec, options)
    if spec:
        return spec
    kind = type(env.unwrapped)
    maker = _pickled(functools.partial(itself, env)) or BoundHere(env, _why_not_pickled(env), is_single=True)
    return _spec(kind.__module__, kind.__qualname__, options, maker)


def _from_gymnasium_spec(spec: Any, options: EnvOptions) -> Spec | None:
    """None if there is no Gymnasium spec, or if it is not complete."""
    if spec is None or any(w.kwargs is None or w.entry_point.startswith("__main__") for w in spec.additional_wrappers):
        return None
    arguments = _named_arguments(spec)
    if arguments is not None:
        named = _spec("gymnasium", spec.id, options, None)
        return dataclasses.replace(named, arguments=arguments)
    import gymnasium

    maker = _pickled(functools.partial(gymnasium.make, spec, disable_env_checker=True))
    return _spec("gymnasium", spec.id, options, maker) if maker else None


def _named_arguments(spec: Any) -> dict[str, Any] | None:
    """The arguments with which `gymnasium.make` of the name gives the same; None if they do not suffice."""
    import gymnasium

    registered = gymnasium.registry.get(spec.id)
    # A name that the user's program registers is unknown in other processes.
    if registered is None or not str(spec.entry_point).startswith("gymnasium.") or spec.additional_wrappers:
        return None
    arguments = {name: value for name, value in spec.kwargs.items() if registered.kwargs.get(name) != value}
    arguments.pop("render_mode", None)  # training renders nothing
    if spec.max_episode_steps != registered.max_episode_steps:
        arguments["max_episode_steps"] = spec.max_episode_steps
    try:
        return arguments if json.loads(json.dumps(arguments)) == arguments else None
    except (TypeError, ValueError):
        return None


def _like_those_of(vector: Any, options: EnvOptions) -> Spec:
    """Single environments like those in a vector, which are then stepped here instead of by the vector."""
    if options.arguments():
        kind = type(vector).__name__
        raise ConfigError(f"env_args is for a class or a function, not for a {kind} object: leave it out")
    if _is_gymnasium(vector, "vector", "VectorWrapper"):
        problem = f"{type(vector).__name__} wraps a vector, but environments are stepped one by one"
        raise ConfigError(f"{problem}: wrap the single environments, or use normalize_observations or --stack")
    members, functions = getattr(vector, "envs", ()), getattr(vector, "env_fns", ())
    if members and (spec := _from_gymnasium_spec(members[0].spec, options)):
        return spec
    if isinstance(functions, Sequence) and functions:
        return _made_by(functions[0], options)
    single = vector.spec and dataclasses.replace(
        vector.spec, kwargs={name: value for name, value in vector.spec.kwargs.items() if name not in OF_VECTORS}
    )
    spec = _from_gymnasium_spec(single, options)
    if spec is None:
        raise ConfigError(f"{type(vector).__name__} does not say how to make one of its environments: give {ACCEPTED}")
    return spec


def _made_by(function: Any, options: EnvOptions) -> Spec:
    module = getattr(function, "__module__", None) or "__main__"
    name = getattr(function, "__qualname__", type(function).__name__)
    if _is_importable(module, name, function):
        return _spec(module, name, options, None)
    maker = _pickled(function) or BoundHere(function, _why_not_pickled(function), is_single=False)
    return _spec(module, name, options, maker)


def _is_importable(module: str, name: str, function: Any) -> bool:
    if module == "__main__":
        return False  # it is another script in another process
    try:
        return loading.load("environment", f"{module}:{name}") is function
    except (UnusableError, ImportError):
        return False


def _spec(package: str, name: str, options: EnvOptions, maker: Maker | None) -> Spec:
    return Spec(package, name, options.arguments(), options.wrappers, options.stack, maker)


def _pickled(function: Any) -> Pickled | None:
    try:
        pickled = Pickled(cloudpickle.dumps(function))
        if isinstance(function, functools.partial) and function.func is itself:
            pickled()  # some objects can be pickled but not restored
        return pickled
    except Exception:
        return None


def _why_not_pickled(source: Any) -> str:
    try:
        cloudpickle.loads(cloudpickle.dumps(source))
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return "it differs each time"
