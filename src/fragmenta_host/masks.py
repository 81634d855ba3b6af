"""Legal actions as a part of observations: those that an environment reports in its infos, and those of stacks."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fragmenta_core.faults import WrongValueError
from fragmenta_core.spaces import MASK, Discrete, MultiDiscrete, as_vector, legal_ones


class InfoMask(gymnasium.Wrapper):
    """An environment whose observations are dictionaries of its own observation and the mask in its info."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        actions = env.action_space
        size = actions.n if isinstance(actions, spaces.Discrete) else int(np.sum(actions.nvec))  # pyright: ignore
        self.observation_space = spaces.Dict(
            {"observation": env.observation_space, MASK: spaces.MultiBinary(int(size))}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return _with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return _with_mask(observation, info), reward, terminated, truncated, info


class LegalActions(gymnasium.Wrapper):
    """An environment that gets the next legal action instead of an illegal one, for a checker that knows no masks."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._mask = observation[MASK]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step."""
        actions, first = self.action_space, 0
        if isinstance(actions, spaces.Discrete):
            space, first = Discrete(int(actions.n)), int(actions.start)
        else:
            assert isinstance(actions, spaces.MultiDiscrete)
            space = MultiDiscrete(tuple(map(int, actions.nvec)))
        legal = legal_ones(space, np.asarray(self._mask), np.asarray(action) - first) + first
        result = self.env.step(legal)
        self._mask = result[0][MASK]
        return result


class LatestMask(gymnasium.ObservationWrapper):
    """Stacked observations in which only the latest mask is kept: earlier ones do not say what is legal now."""

    def __init__(self, env: gymnasium.Env, mask: gymnasium.Space) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        self.observation_space = spaces.Dict({**env.observation_space.spaces, MASK: mask})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The same observation with one mask."""
        return {**observation, MASK: observation[MASK][-1]}


def _with_mask(observation: Any, info: dict[str, Any]) -> dict[str, Any]:
    if MASK not in info:
        raise WrongValueError(f"returned an info without '{MASK}', which the info of its first reset had")
    return {"observation": observation, MASK: as_vector(info[MASK])}
