"""Gymnasium environments with one defect each."""

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Unseeded(gymnasium.Env):
    """Draws its noise from an unseeded generator."""

    observation_space = spaces.Box(-10, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._observation(), 1.0, False, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([random.random()], np.float32)


class Entangled(Unseeded):
    """All instances share one step counter, so the observation of one depends on the steps of the others."""

    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        Entangled.steps = 0
        return np.zeros(1, np.float32), {}

    def _observation(self) -> np.ndarray:
        Entangled.steps += 1
        return np.array([Entangled.steps % 7], np.float32)


class OutOfBounds(Unseeded):
    """Returns observations outside of its space."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def _observation(self) -> np.ndarray:
        return np.array([2.0], np.float32)


class Ignorant(Unseeded):
    """Ignores its seed, but is deterministic."""

    def _observation(self) -> np.ndarray:
        return np.zeros(1, np.float32)


class Nested(gymnasium.Env):
    """A sound environment with observations in parts."""

    observation_space = spaces.Dict(
        {
            "pair": spaces.Tuple([spaces.Discrete(7, start=5), spaces.MultiDiscrete([2, 3])]),
            "place": spaces.Box(np.array([0, -2], np.float32), np.array([1, 2], np.float32)),
        }
    )
    action_space = spaces.Discrete(2)
    ends: Any = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: int) -> Any:
        return self._observation(), self._reward(), self.ends, False, {}

    def _observation(self) -> Any:
        return {"pair": (6, np.array([1, 2])), "place": np.array([0.5, -1.5], np.float32)}

    def _reward(self) -> Any:
        return 1.0


class WrongPart(Nested):
    """One entry of a part is outside of its bounds."""

    def _observation(self) -> Any:
        return {**super()._observation(), "place": np.array([0.5, 5], np.float32)}


class WrongNumber(Nested):
    """Shows a number that its Discrete space does not have."""

    def _observation(self) -> Any:
        return {**super()._observation(), "pair": (14, np.array([1, 2]))}


class MissingKey(Nested):
    """Leaves out a part."""

    def _observation(self) -> Any:
        return {"pair": super()._observation()["pair"]}


class Nothing(Nested):
    """Returns no observation."""

    def _observation(self) -> Any:
        return None


class PartIsNothing(Nested):
    """Returns nothing in place of a part."""

    def _observation(self) -> Any:
        return {**super()._observation(), "place": None}


class ShortTuple(Nested):
    """Leaves out an entry of a tuple."""

    def _observation(self) -> Any:
        return {**super()._observation(), "pair": (6,)}


class WordReward(Nested):
    """The reward is a string."""

    def _reward(self) -> Any:
        return "1.0"


class ArrayReward(Nested):
    """The reward is an array with one entry."""

    def _reward(self) -> Any:
        return np.ones(1)


class NoReward(Nested):
    """The reward is missing."""

    def _reward(self) -> Any:
        return None


class NoFlag(Nested):
    """Does not say whether the episode has ended."""

    ends = None


class OldReset(Nested):
    """Returns only an observation from reset, as before Gymnasium 0.26."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class Talkative(Nested):
    """Prints in its first step."""

    talks = True

    def step(self, action: int) -> Any:
        if self.talks:
            print("the door is open")
            self.talks = False
        return super().step(action)
