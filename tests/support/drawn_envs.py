"""Gymnasium environments whose `render` works or fails in a known way."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Drawn(gymnasium.Env):
    """Episodes of five steps; the image gets brighter with each."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as Gymnasium wants it)
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, picture: str = "good") -> None:
        self.render_mode, self.picture, self.steps = render_mode, picture, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 5, False, {}

    def render(self) -> Any:
        if self.picture == "none":
            return None
        if self.picture == "raises":
            raise RuntimeError("no\nscreen")
        return np.full((31, 47, 3), 40 * self.steps, np.uint8)


class Undrawn(Drawn):
    """Its constructor does not take `render_mode`."""

    def __init__(self) -> None:
        super().__init__()
