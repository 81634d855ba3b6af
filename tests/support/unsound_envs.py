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
