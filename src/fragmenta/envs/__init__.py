"""Environments by name."""

import importlib
from collections.abc import Callable

from fragmenta.envs import host
from fragmenta.envs.base import Environment, Transition, World
from fragmenta.envs.classic import Acrobot, CartPole, MountainCar, Pendulum
from fragmenta.envs.probes import (
    ProbeAction,
    ProbeConstant,
    ProbeDiscount,
    ProbeObservation,
    ProbeTeam,
    ProbeTruncation,
)
from fragmenta.envs.team import TeamEnvironment
from fragmenta_host.catalogue import Spec
from fragmenta_host.spaces import Box, Dict, Discrete, MultiDiscrete, Space

ENVIRONMENTS: dict[str, Callable[[], Environment]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "ProbeConstant": ProbeConstant,
    "ProbeObservation": ProbeObservation,
    "ProbeDiscount": ProbeDiscount,
    "ProbeAction": ProbeAction,
    "ProbeTruncation": ProbeTruncation,
    "ProbeTeam": ProbeTeam,
}
"""The built-in ones, all of them in JAX."""

ADAPTERS = ("brax", "craftax", "gymnax", "jaxmarl", "jumanji", "playground")
"""Packages whose environments go by `package:name`, each adapted in the module of that name."""


def make(env: str | Environment) -> Environment:
    """The environment of that name, built in or `package:name`; an environment is returned as it is."""
    if isinstance(env, Environment):
        return env
    package, colon, name = env.partition(":")
    if colon and package in ADAPTERS:
        return importlib.import_module(f"fragmenta.envs.{package}").make(name)
    if env in ENVIRONMENTS:
        return ENVIRONMENTS[env]()
    return host.make(Spec(*((package, name) if colon else ("gymnasium", env))))


__all__ = [
    "ENVIRONMENTS",
    "Box",
    "Dict",
    "Discrete",
    "Environment",
    "MultiDiscrete",
    "Space",
    "TeamEnvironment",
    "Transition",
    "World",
    "make",
]
