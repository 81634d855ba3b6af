"""A PettingZoo parallel environment of two agents that returns one wrong value, at a reset or at its third step."""

from typing import Any

import numpy as np

import vanishing_team


class parallel_env(vanishing_team.parallel_env):
    """Never ends. `wrong` is what is wrong; `at` is the step, and 0 the reset."""

    def __init__(self, wrong: str = "", at: int = 3) -> None:
        super().__init__(leaves=(None, None), limit=1_000_000)
        self._wrong, self._at = wrong, at

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed, options)
        if self._at == 0:
            return None if self._wrong == "result" else (self._spoilt(observations), infos)
        return observations, infos

    def step(self, actions: dict[str, int]) -> Any:
        observations, rewards, *rest = super().step(actions)
        if self.time != self._at:
            return observations, rewards, *rest
        if self._wrong == "result":
            return observations, rewards
        return self._spoilt(observations), self._spoilt_rewards(rewards), *rest

    def _spoilt(self, observations: dict[str, Any]) -> Any:
        first = observations["agent_0"]
        return {
            "missing": {"agent_0": first},
            "key": {"agent_0": first, "agent_7": first},
            "shape": {**observations, "agent_1": np.zeros(4, np.float32)},
            "every shape": dict.fromkeys(observations, np.zeros(4, np.float32)),
            "dtype": {**observations, "agent_1": np.array(["a", "b", "c"])},
            "nothing": {**observations, "agent_1": None},
            "no dictionary": first,
            "nan": {**observations, "agent_1": np.full(3, np.nan, np.float32)},
        }.get(self._wrong, observations)

    def _spoilt_rewards(self, rewards: dict[str, float]) -> Any:
        return {
            "no reward": {"agent_0": 1.0},
            "reward": {**rewards, "agent_1": None},
            "rewards": None,
        }.get(self._wrong, rewards)
