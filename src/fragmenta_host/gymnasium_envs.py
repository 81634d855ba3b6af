"""Gymnasium's environments: every registered id, a class of the user's own, and wrappers around either."""

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fragmenta_host.arrays import Description
from fragmenta_host.faults import UnusableError, WrongValueError
from fragmenta_host.single import Outcome, Seen
from fragmenta_host.spaces import Box, Dict, Discrete, MultiDiscrete, Space


class GymnasiumEnv:
    """One Gymnasium environment; a `package` other than gymnasium is the user's module with a class in it."""

    def __init__(self, package: str, name: str, arguments: dict[str, Any], wrappers: list[str], stack: int) -> None:
        if package == "gymnasium":
            try:
                env = gymnasium.make(name, disable_env_checker=True, **arguments)
            except gymnasium.error.Error as error:
                raise UnusableError(f"cannot make gymnasium:{name}: {error}".splitlines()[0]) from error
        else:
            env = load(f"{package}:{name}")(**arguments)
            if not isinstance(env, gymnasium.Env):
                raise UnusableError(f"{package}:{name} is {type(env).__name__}, not a gymnasium.Env or an Environment")
        for wrapper in wrappers:
            env = load(wrapper)(env)
        if stack > 1:
            env = gymnasium.wrappers.FrameStackObservation(env, stack)
        self.env = env
        self._space, action = env.observation_space, env.action_space
        limit = env.spec.max_episode_steps if env.spec else None
        self.description = Description(convert(self._space), _action_space(action), None, limit)
        self._flat = _flattener(self._space)
        self.actions = _action_maker(action)

    def reset(self, seed: int | None) -> Seen:
        """Start an episode."""
        observation, _ = self.env.reset(seed=seed)
        if self.env.observation_space is not self._space and self.env.observation_space != self._space:
            raise WrongValueError(f"changed its observation space from {self._space} to {self.env.observation_space}")
        return Seen(self._flat(observation))

    def step(self, action: Any) -> Outcome:
        """One step."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return Outcome(self._flat(observation), reward, terminated, truncated)

    def random_action(self) -> Any:
        """An action at random."""
        return self.env.action_space.sample()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def load(path: str) -> Any:
    """What `module:name` names."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        missing = isinstance(error, AttributeError) or (error.name or "").partition(".")[0] == module.partition(".")[0]
        if not missing:  # the module is there and fails: that is the user's own code
            raise
        raise UnusableError(f"cannot load '{path}': {error}") from error
    return found


def convert(space: spaces.Space) -> Space:
    """A space of Gymnasium's as plain data."""
    if isinstance(space, spaces.Box):
        kind = "float32" if space.dtype.kind == "f" else "uint8" if space.dtype == np.uint8 else "int32"
        return Box(float(np.min(space.low)), float(np.max(space.high)), tuple(space.shape), kind)
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.ravel()))
    if isinstance(space, spaces.MultiBinary):
        return Box(0.0, 1.0, tuple(space.shape), "int32")
    if isinstance(space, spaces.Dict):
        return Dict(tuple((name, convert(part)) for name, part in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return Dict(tuple((str(i), convert(part)) for i, part in enumerate(space.spaces)))
    raise UnusableError(f"space {space} has no array of fixed shape: wrap the environment so that it has")


def _action_space(space: spaces.Space) -> Space:
    if isinstance(space, spaces.MultiBinary):
        return MultiDiscrete((2,) * int(np.prod(space.shape)))
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        raise UnusableError(f"action space {space} is of several parts: wrap the environment so that it takes one")
    return convert(space)


def _flattener(space: spaces.Space) -> Callable[[Any], list[Any]]:
    """From an observation to the list of its arrays, in the order of the description."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        named: dict[Any, Any] = dict(space.items() if isinstance(space, spaces.Dict) else enumerate(space))
        inner = [(key, _flattener(named[key])) for key in sorted(named, key=str)]
        return lambda value: [leaf for key, flat in inner for leaf in flat(value[key])]
    if isinstance(space, spaces.Discrete) and space.start != 0:
        return lambda value: [value - space.start]
    if isinstance(space, spaces.MultiDiscrete):
        return lambda value: [np.ravel(value - space.start)]
    return lambda value: [value]


def _action_maker(space: spaces.Space) -> Callable[[np.ndarray], Any]:
    """From rows of actions to what the environment takes, for all rows at once; boxes are clipped to their bounds."""
    if isinstance(space, spaces.Discrete):
        return lambda rows: (rows + int(space.start)).tolist()
    if isinstance(space, spaces.MultiDiscrete):
        return lambda rows: (rows.reshape(len(rows), *space.shape) + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return lambda rows: rows.reshape(len(rows), *space.shape).astype(space.dtype)
    assert isinstance(space, spaces.Box)
    return lambda rows: np.clip(rows, space.low, space.high).astype(space.dtype, copy=False)
