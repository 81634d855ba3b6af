"""Gymnasium environments whose steps take a known time, to test how environments are stepped."""

import fcntl
import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Patient(gymnasium.Env):
    """Sleeps in every step, and in every `reset` that is not its first; ends after `ends` steps.

    Observes how many episodes it has begun since it was made, which no seed resets. Every instance that is made adds
    the process to the file `log`.
    """

    def __init__(self, seconds: float = 1e-3, reset_seconds: float = 0.0, ends: int = 10, log: str = "") -> None:
        self.seconds, self.reset_seconds, self.ends = seconds, reset_seconds, ends
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.episodes, self.steps = 0, 0
        if log:
            with open(log, "a") as file:
                file.write(f"{os.getpid()}\n")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if self.episodes and self.reset_seconds:
            time.sleep(self.reset_seconds)
        self.episodes, self.steps = self.episodes + 1, 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        self._take_time()
        return self._observation(), 1.0, self.steps == self.ends, False, {}

    def _take_time(self) -> None:
        if self.seconds:
            time.sleep(self.seconds)

    def _observation(self) -> np.ndarray:
        return np.array([self.episodes, self.steps, self.np_random.normal()], np.float32)


class Exclusive(Patient):
    """Only one on this machine can step at a time, so that several processes are no faster than one."""

    def _take_time(self) -> None:
        with open(__file__) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(self.seconds)
