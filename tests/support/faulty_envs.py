"""Gymnasium environments with one fault each, at a known step of a known environment."""

import ctypes
import multiprocessing
import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LONG_SECONDS = 7


class Steady(gymnasium.Env):
    """Observes its step count and never ends. Fails at step `at` if its seed is divisible by `share`."""

    def __init__(self, fault: str = "", at: int = 5, share: int = 1, marker: str = "") -> None:
        self.fault, self.at, self.share, self.marker = fault, at, share, marker
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps, self.chosen = 0, False
        if fault == "construct":
            raise ValueError("no hardware")
        if fault == "fork" and not os.fork():
            time.sleep(3600)
        if fault == "multiprocessing":
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,)).start()
        if fault == "die_once" and not os.path.exists(marker + "2"):
            # The first instance is made to read the spaces; the second one ends its process.
            with open(marker + ("2" if os.path.exists(marker) else ""), "w") as file:
                file.write("here")
            if os.path.exists(marker + "2"):
                os._exit(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.chosen = seed % self.share == 0
        if self.fault == "reset" and self.chosen:
            raise ValueError("cannot reset")
        if self.fault == "nan_reset" and self.steps and self.chosen:
            return np.full(2, np.nan, np.float32), {}
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        if self.fault == "nan_reset":
            return self._observation(), 1.0, self.steps == self.at, False, {}
        if self.steps == self.at and self.chosen and hasattr(self, f"_{self.fault}"):
            return getattr(self, f"_{self.fault}")()
        return self._observation(), 1.0, False, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.steps, 0.0], np.float32)

    def _raise(self) -> Any:
        raise ValueError("the motor is stuck")

    def _exit(self) -> Any:
        os._exit(7)

    def _leave(self) -> Any:
        raise SystemExit(5)

    def _segfault(self) -> Any:
        ctypes.string_at(0)

    def _hang(self) -> Any:
        time.sleep(3600)

    def _hold(self) -> Any:
        ctypes.PyDLL(None).sleep(LONG_SECONDS)  # holds the GIL, as some packages do
        return self._observation(), 1.0, False, False, {}

    def _seize(self) -> Any:
        ctypes.PyDLL(None).sleep(3600)

    def _pause_once(self) -> Any:
        if not os.path.exists(self.marker):
            with open(self.marker, "w") as file:
                file.write("here")
            time.sleep(LONG_SECONDS)
        return self._observation(), 1.0, False, False, {}

    def _nan(self) -> Any:
        return np.array([np.nan, 0.0], np.float32), 1.0, False, False, {}

    def _nan_reward(self) -> Any:
        return self._observation(), float("nan"), False, False, {}

    def _shape(self) -> Any:
        return np.zeros(3, np.float32), 1.0, False, False, {}

    def _dtype(self) -> Any:
        return np.array(["a", "b"]), 1.0, False, False, {}

    def _four(self) -> Any:
        return self._observation(), 1.0, False, {}

    def _nothing(self) -> Any:
        return None

    def _space(self) -> Any:
        self.observation_space = spaces.Box(0, 1, (3,), np.float32)
        return self._observation(), 1.0, True, False, {}


class NotAnEnvironment:
    pass


class NeedsAnArgument(Steady):
    def __init__(self, needed: int) -> None:
        super().__init__()
