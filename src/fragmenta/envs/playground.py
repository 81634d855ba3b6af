"""Environments of MuJoCo Playground: its bare ones, because its wrappers start from the first state again."""

import dataclasses
import functools
from typing import Any

import jax

from fragmenta.envs.brax import StatefulEnvironment
from fragmenta.envs.packages import load, quiet
from fragmenta.errors import unknown


@dataclasses.dataclass(frozen=True)
class PlaygroundEnvironment(StatefulEnvironment):
    """One environment of MuJoCo Playground with its default configuration, cut off after `max_steps`."""

    def original(self) -> Any:
        return _build(self.name)


def make(name: str) -> PlaygroundEnvironment:
    """The environment of that name, with the episode length of its configuration."""
    registry = load("mujoco_playground", "playground").registry
    if name not in registry.ALL_ENVS:
        known = [f"playground:{known_name}" for known_name in registry.ALL_ENVS]
        raise unknown("environment", f"playground:{name}", known)
    return PlaygroundEnvironment(int(registry.get_default_config(name).episode_length), name=name)


@functools.cache
def _build(name: str) -> Any:
    registry = load("mujoco_playground", "playground").registry
    # Where there is a choice of engines, not the default Warp: it keeps traced values from one trace to the next.
    engine = {"impl": "jax"} if "impl" in registry.get_default_config(name) else {}
    with jax.ensure_compile_time_eval(), quiet():  # it makes arrays, which must be constants even within a trace
        return registry.load(name, config_overrides=engine)
