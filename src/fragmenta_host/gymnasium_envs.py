"""Gymnasium environments: every registered id, the user's own classes, and wrappers around either."""

from collections.abc import Sequence
from typing import Any

import gymnasium

from fragmenta_core.arrays import Description
from fragmenta_core.faults import UnusableError, WrongValueError
from fragmenta_core.loading import construct, load
from fragmenta_host.gymnasium_spaces import action_maker, action_space, convert, exact_bounds, gatherer, mismatch
from fragmenta_host.single import ResetResult


class GymnasiumEnv:
    """One Gymnasium environment; a `package` other than gymnasium is the user's module that contains the class."""

    def __init__(self, package: str, name: str, arguments: dict[str, Any], wrappers: list[str], stack: int) -> None:
        if package == "gymnasium":
            try:
                env = construct(gymnasium.make, name, disable_env_checker=True, **arguments)
            except gymnasium.error.Error as error:
                raise UnusableError(f"cannot make gymnasium:{name}: {error}".splitlines()[0]) from error
        else:
            env = construct(load("environment", f"{package}:{name}"), **arguments)
            if not isinstance(env, gymnasium.Env):
                raise UnusableError(f"{package}:{name} is {type(env).__name__}, not a gymnasium.Env")
        for wrapper in wrappers:
            env = construct(load("wrapper", wrapper), env)
        if stack > 1:
            env = gymnasium.wrappers.FrameStackObservation(env, stack)
        self.env = env
        self._space, action = env.observation_space, env.action_space
        limit = env.spec.max_episode_steps if env.spec else None
        converted = convert(self._space), action_space(action)
        self.description = Description(*converted, None, limit, bounds=exact_bounds(self._space))
        self.step, self.parts, self.actions = env.step, gatherer(self._space), action_maker(action)

    def reset(self, seed: int | None) -> ResetResult:
        """Start an episode."""
        result = self.env.reset(seed=seed)
        if self.env.observation_space is not self._space and self.env.observation_space != self._space:
            raise WrongValueError(f"changed its observation space from {self._space} to {self.env.observation_space}")
        return result

    def mismatch(self, observation: Any) -> str | None:
        """How an observation differs from the structure of its space."""
        return mismatch(self._space, observation)

    def alive(self, infos: Sequence[Any]) -> bool:
        """The single agent is always active."""
        return True

    def random_action(self) -> Any:
        """A random action."""
        return self.env.action_space.sample()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
