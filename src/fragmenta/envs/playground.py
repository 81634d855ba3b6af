"""MuJoCo Playground environments without its wrappers, which restart from the same first state."""

import dataclasses
import functools
from typing import Any

import jax

from fragmenta.envs.brax import StatefulEnvironment
from fragmenta.envs.packages import import_package, quiet
from fragmenta.errors import unknown


@dataclasses.dataclass(frozen=True)
class PlaygroundEnvironment(StatefulEnvironment):
    """One MuJoCo Playground environment with its default configuration, truncated after `max_steps`."""

    def original(self) -> Any:
        return _build(self.name)


def make(name: str) -> PlaygroundEnvironment:
    """The environment with that name, with the episode length of its configuration."""
    registry = import_package("mujoco_playground", "playground").registry
    if name not in registry.ALL_ENVS:
        names = [f"playground:{known_name}" for known_name in registry.ALL_ENVS]
        raise unknown("environment", f"playground:{name}", names)
    return PlaygroundEnvironment(int(registry.get_default_config(name).episode_length), name=name)


@functools.cache
def _build(name: str) -> Any:
    registry = import_package("mujoco_playground", "playground").registry
    # Where engines can be chosen, avoid the default Warp: it leaks traced values from one trace to the next.
    engine = {"impl": "jax"} if "impl" in registry.get_default_config(name) else {}
    with jax.ensure_compile_time_eval(), quiet():  # it creates arrays, which must be constants even inside a trace
        return registry.load(name, config_overrides=engine)
