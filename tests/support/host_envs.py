"""Gymnasium environments with known values, to test environments on the host."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """Observes the episode and step numbers; terminates after `ends` steps or is truncated after `cut`.

    The observation has noise from the environment's seeded generator, so that environments differ.
    """

    def __init__(self, ends: int = 1_000_000, cut: int = 1_000_000) -> None:
        self.ends, self.cut = ends, cut
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(3, start=-1)
        self.episode, self.steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert action in (-1, 0, 1), action
        self.steps += 1
        return self._observation(), float(action), self.steps == self.ends, self.steps == self.cut, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.episode, self.steps, self.np_random.normal()])


class Parts(gymnasium.Env):
    """Dictionary observations and multi-discrete actions: pays 1 if the first choice equals the observed number."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "number": spaces.Discrete(3, start=5),
                "camera": spaces.Box(0, 255, (16, 16, 3), np.uint8),
                "both": spaces.Tuple([spaces.MultiBinary(2), spaces.Box(-1, 1, (2, 2), np.float32)]),
            }
        )
        self.action_space = spaces.MultiDiscrete([3, 2])
        self.number = 5

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        assert action.shape == (2,)
        paid = float(action[0] == self.number - 5)
        return self._observation(), paid, self.np_random.random() < 0.2, False, {}

    def _observation(self) -> dict[str, Any]:
        self.number = 5 + int(self.np_random.integers(3))
        camera = np.full((16, 16, 3), 30 * self.number, np.uint8)
        both = (np.array([1, 0], np.int8), np.full((2, 2), 0.5, np.float32))
        return {"number": self.number, "camera": camera, "both": both}


class Clipped(gymnasium.Env):
    """The reward is the action, which must be within its bounds."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(np.array([-0.5, 0.0], np.float32), np.array([0.5, 0.25], np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        return np.zeros(1, np.float32), float(action.sum()), False, False, {}


class Doubled(gymnasium.RewardWrapper):
    """A user-defined wrapper."""

    def reward(self, reward: Any) -> Any:
        return 2 * reward


class Fussy(gymnasium.Env):
    """Says in its info which action is legal, and pays 1 for it; any other one ends the episode and pays nothing."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        is_legal = bool(action == self.legal)
        self.steps += 1
        return np.zeros(2, np.float32), float(is_legal), not is_legal, self.steps == 5, self._info()

    def _info(self) -> dict[str, np.ndarray]:
        self.legal = int(self.np_random.integers(3))
        return {"action_mask": np.eye(3, dtype=np.int8)[self.legal]}


class FussyPairs(Fussy):
    """Of two actions at a time, with a mask of each in a tuple, as Gymnasium's spaces take it to sample."""

    action_space = spaces.MultiDiscrete([3, 3])  # pyright: ignore[reportAssignmentType]

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return super().step(action[0] if action[1] == 2 else -1)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": (super()._info()["action_mask"], np.eye(3, dtype=np.int8)[2])}


class StrictPairs(FussyPairs):
    """Takes no illegal action."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert list(action) == [self.legal, 2], "illegal"
        return super().step(action)


class LateFussy(Fussy):
    """Says only after a step what is legal."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return super().reset(seed=seed)[0], {}


class ShortFussy(Fussy):
    """Does not say of all actions whether they are legal."""

    def _info(self) -> dict[str, np.ndarray]:
        return {"action_mask": super()._info()["action_mask"][:2]}


class FussyInParts(Fussy):
    """The same in a part of its observations."""

    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "seen": Fussy.observation_space})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        seen, mask = super().reset(seed=seed)
        return {**mask, "seen": seen}, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        seen, reward, terminated, truncated, mask = super().step(action)
        return {**mask, "seen": seen}, reward, terminated, truncated, {}
