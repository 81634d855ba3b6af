"""Gymnasium's environments: every registered id, a class of the user's own, and wrappers around either."""

import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium

from fragmenta_core.arrays import Description
from fragmenta_core.faults import UnusableError, WrongValueError
from fragmenta_host.gymnasium_spaces import action_maker, action_space, convert, gatherer
from fragmenta_host.single import Seen


class GymnasiumEnv:
    """One Gymnasium environment; a `package` other than gymnasium is the user's module with a class in it."""

    def __init__(self, package: str, name: str, arguments: dict[str, Any], wrappers: list[str], stack: int) -> None:
        if package == "gymnasium":
            try:
                env = built(gymnasium.make, name, disable_env_checker=True, **arguments)
            except gymnasium.error.Error as error:
                raise UnusableError(f"cannot make gymnasium:{name}: {error}".splitlines()[0]) from error
        else:
            env = built(load(f"{package}:{name}"), **arguments)
            if not isinstance(env, gymnasium.Env):
                raise UnusableError(f"{package}:{name} is {type(env).__name__}, not a gymnasium.Env")
        for wrapper in wrappers:
            env = built(load(wrapper), env)
        if stack > 1:
            env = gymnasium.wrappers.FrameStackObservation(env, stack)
        self.env = env
        self._space, action = env.observation_space, env.action_space
        limit = env.spec.max_episode_steps if env.spec else None
        self.description = Description(convert(self._space), action_space(action), None, limit)
        self.step, self.parts, self.actions = env.step, gatherer(self._space), action_maker(action)

    def reset(self, seed: int | None) -> Seen:
        """Start an episode."""
        seen = self.env.reset(seed=seed)
        if self.env.observation_space is not self._space and self.env.observation_space != self._space:
            raise WrongValueError(f"changed its observation space from {self._space} to {self.env.observation_space}")
        return seen

    def alive(self, said: Sequence[Any]) -> bool:
        """There is one agent, and it is always there."""
        return True

    def random_action(self) -> Any:
        """An action at random."""
        return self.env.action_space.sample()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def built(maker: Any, *positional: Any, **arguments: Any) -> Any:
    """What a constructor makes; arguments that it does not take, or misses, are a mistake of whoever gave them."""
    try:
        return maker(*positional, **arguments)
    except TypeError as error:
        about_arguments = ("unexpected keyword argument", "required positional", "required keyword-only")
        if not any(text in str(error) for text in about_arguments):
            raise
        raise UnusableError(f"wrong arguments: {error}".splitlines()[0]) from error


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
