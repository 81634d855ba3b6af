"""Environments whose steps take long, in JAX and on the host, for the grid of `planner.py`."""

import dataclasses
import time
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.envs.classic import Pendulum


@dataclasses.dataclass(frozen=True)
class CostlyPendulum(Pendulum):
    """A pendulum whose step multiplies matrices a few times, as a simulator of contacts would."""

    def advance(self, state: Any, action: jax.Array, key: jax.Array) -> Any:
        effort = jnp.full((48, 48), 1e-3) + action.sum() * 1e-6
        for _ in range(8):
            effort = jnp.tanh(effort @ effort.T)
        state, reward, terminated = super().advance(state, action, key)
        return state, reward + 0.0 * effort.sum(), terminated


class CostlyEnv(gymnasium.Env):
    """Computes in NumPy for about half a millisecond, holding the interpreter for a part of it."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps += 1
        end = time.perf_counter() + 5e-4
        noise = np.zeros(8)
        while time.perf_counter() < end:
            noise = self.np_random.normal(size=8)
        return np.tanh(noise).astype(np.float32), float(action), self._steps == 200, False, {}
