"""Gymnasium environments that are not sound, each in one way."""

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Unseeded(gymnasium.Env):
    """Draws its noise from a generator that nobody seeds."""

    observation_space = spaces.Box(-10, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._show(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self._show(), 1.0, False, False, {}

    def _show(self) -> np.ndarray:
        return np.array([random.random()], np.float32)


class Entangled(Unseeded):
    """All of them count the same steps: what one shows depends on how often the others were stepped before it."""

    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        Entangled.steps = 0
        return np.zeros(1, np.float32), {}

    def _show(self) -> np.ndarray:
        Entangled.steps += 1
        return np.array([Entangled.steps % 7], np.float32)


class OutOfBounds(Unseeded):
    """Shows more than its space has."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def _show(self) -> np.ndarray:
        return np.array([2.0], np.float32)


class Ignorant(Unseeded):
    """Takes no notice of its seed, and needs none."""

    def _show(self) -> np.ndarray:
        return np.zeros(1, np.float32)
