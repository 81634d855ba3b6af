"""Environments by name."""

import importlib
from collections.abc import Callable
from typing import Any

from fragmenta.envs import host
from fragmenta.envs.base import Environment, Transition, World
from fragmenta.envs.classic import Acrobot, CartPole, MountainCar, Pendulum
from fragmenta.envs.host import HostEnvironment
from fragmenta.envs.objects import spec_of
from fragmenta.envs.options import EnvOptions
from fragmenta.envs.probes import (
    ProbeAction,
    ProbeConstant,
    ProbeDiscount,
    ProbeMask,
    ProbeMemory,
    ProbeObservation,
    ProbeTarget,
    ProbeTeam,
    ProbeTruncation,
)
from fragmenta.envs.stack import Stack
from fragmenta.envs.team import TeamEnvironment
from fragmenta.errors import ConfigError, unknown
from fragmenta_core import loading
from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from fragmenta_host.catalogue import SINGLES, VECTORS, Spec

ENVIRONMENTS: dict[str, Callable[[], Environment]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
}
"""The built-in environments, all of them in JAX."""

PROBES: dict[str, Callable[[], Environment]] = {
    "ProbeConstant": ProbeConstant,
    "ProbeObservation": ProbeObservation,
    "ProbeDiscount": ProbeDiscount,
    "ProbeAction": ProbeAction,
    "ProbeTruncation": ProbeTruncation,
    "ProbeTarget": ProbeTarget,
    "ProbeMemory": ProbeMemory,
    "ProbeMask": ProbeMask,
    "ProbeTeam": ProbeTeam,
}
"""Environments with known values, to test algorithms; found by name, but not listed."""

ADAPTERS = ("brax", "craftax", "gymnax", "jaxmarl", "jumanji", "playground")
"""Packages of JAX environments, named `package:name`; each has an adapter in the module of that name."""


def make(env: Any, options: EnvOptions | None = None) -> Environment:
    """The environment with that name, or like the given object; a `fragmenta.Environment` is returned unchanged.

    A name is `package:name`, `module:Class` for your own, or a bare name: the built-in JAX environment if there is one,
    otherwise Gymnasium's. An object is a `gymnasium.Env`, its class, a function that makes one, or a `VectorEnv`.
    """
    if isinstance(env, Environment):
        if options not in (None, EnvOptions()):
            raise ConfigError(
                f"options were given for '{env.title}', which already exists: pass them to fragmenta.make"
            )
        return env
    options = options or EnvOptions()
    arguments, pool = options.arguments(), options.pool()
    own_class = _own_jax_class(env)
    jax_env = _construct(env, own_class, arguments) if own_class else _make_jax_env(env)
    if jax_env is not None:
        host_only = [name for name in options.host_only() if not (own_class and name == "env_args")]
        if host_only:
            raise ConfigError(f"{host_only[0]} is for host environments, but '{env}' is in JAX: leave it out")
        return Stack(jax_env, options.stack) if options.stack > 1 else jax_env
    if not isinstance(env, str):
        return host.make(spec_of(env, options), pool)
    package, colon, name = env.partition(":")
    parts = (package, name) if colon else ("gymnasium", env)
    try:
        return host.make(Spec(*parts, arguments, options.wrappers, options.stack), pool)
    except ConfigError as error:
        if colon:
            raise
        raise unknown("environment", env, ENVIRONMENTS, f"; and {error}") from error


def _make_jax_env(env: Any) -> Environment | None:
    if not isinstance(env, str):
        return None
    package, colon, name = env.partition(":")
    built_in = ENVIRONMENTS.get(env) or PROBES.get(env)
    if built_in:
        return built_in()
    if colon and package in ADAPTERS:
        return importlib.import_module(f"fragmenta.envs.{package}").make(name)
    return None


def _own_jax_class(env: Any) -> type[Environment] | None:
    """The user's JAX environment, itself or at `module:Class`; None if the class is not one."""
    if not isinstance(env, str):
        return env if isinstance(env, type) and issubclass(env, Environment) else None
    package, colon, _ = env.partition(":")
    if not colon or package in (*ADAPTERS, *SINGLES, *VECTORS):
        return None
    try:
        kind = loading.load("environment", env)
    except Exception:  # the environment process reports it, with its traceback
        return None
    return kind if isinstance(kind, type) and issubclass(kind, Environment) else None


def _construct(env: Any, kind: type[Environment], arguments: dict[str, Any]) -> Environment:
    try:
        return loading.construct(kind, **arguments)
    except UnusableError as error:
        raise ConfigError(f"{env if isinstance(env, str) else kind.__name__}: {error}") from error


__all__ = [
    "ADAPTERS",
    "ENVIRONMENTS",
    "PROBES",
    "Box",
    "Dict",
    "Discrete",
    "EnvOptions",
    "Environment",
    "HostEnvironment",
    "MultiDiscrete",
    "Space",
    "Stack",
    "TeamEnvironment",
    "Transition",
    "World",
    "make",
]
