"""Environments by name."""

from collections.abc import Callable

from fragmenta.envs.base import Box, Discrete, Environment, Transition, World
from fragmenta.envs.classic import Acrobot, CartPole, MountainCar, Pendulum
from fragmenta.envs.jaxmarl import SimpleSpread, SimpleTag
from fragmenta.envs.probes import (
    ProbeAction,
    ProbeConstant,
    ProbeDiscount,
    ProbeObservation,
    ProbeTeam,
    ProbeTruncation,
)
from fragmenta.envs.team import TeamEnvironment
from fragmenta.errors import unknown

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
    "jaxmarl:simple_spread": SimpleSpread,
    "jaxmarl:simple_tag": SimpleTag,
}


def make(env: str | Environment) -> Environment:
    """The environment of that name; an environment is returned as it is."""
    if isinstance(env, Environment):
        return env
    if env not in ENVIRONMENTS:
        raise unknown("environment", env, ENVIRONMENTS)
    return ENVIRONMENTS[env]()


__all__ = ["ENVIRONMENTS", "Box", "Discrete", "Environment", "TeamEnvironment", "Transition", "World", "make"]
