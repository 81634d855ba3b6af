"""A PettingZoo parallel environment of two agents with unlike spaces, which refuses actions that are not legal."""

from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv


class parallel_env(ParallelEnv[str, Any, int]):
    """The first agent observes one number and has two actions, the second four numbers and three actions.

    With `masks` in the "info" or the "observation", the action whose number is the step modulo two is illegal. With
    `mixed`, the second agent has continuous actions.
    """

    metadata = {"name": "unlike_team", "render_modes": []}  # noqa: RUF012

    def __init__(self, masks: str = "none", mixed: bool = False) -> None:
        self.possible_agents = ["small", "large"]
        self._masks, self._mixed = masks, mixed

    def observation_space(self, agent: str) -> gymnasium.Space:
        vector = gymnasium.spaces.Box(-10, 10, (1 if agent == "small" else 4,), np.float32)
        if self._masks != "observation":
            return vector
        mask = gymnasium.spaces.Box(0, 1, (self._count(agent),), np.int8)
        return gymnasium.spaces.Dict({"observation": vector, "action_mask": mask})

    def action_space(self, agent: str) -> gymnasium.Space:
        if self._mixed and agent == "large":
            return gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        return gymnasium.spaces.Discrete(self._count(agent))

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.agents = 0, list(self.possible_agents)
        return self._observations(), self._infos()

    def step(self, actions: dict[str, int]) -> Any:
        for agent, action in actions.items():
            assert self._legal(agent)[action], f"{agent} did {action} at step {self.time}"
        self.time += 1
        done = dict.fromkeys(self.agents, self.time == 5)
        observations, infos, rewards = self._observations(), self._infos(), dict.fromkeys(self.agents, 1.0)
        self.agents = [] if self.time == 5 else self.agents
        return observations, rewards, done, dict.fromkeys(done, False), infos

    def _count(self, agent: str) -> int:
        return 2 if agent == "small" else 3

    def _legal(self, agent: str) -> np.ndarray:
        everything = np.arange(self._count(agent)) >= 0
        return everything if self._masks == "none" else np.arange(self._count(agent)) != self.time % 2

    def _infos(self) -> dict[str, Any]:
        return {agent: {"action_mask": self._legal(agent)} if self._masks == "info" else {} for agent in self.agents}

    def _observations(self) -> dict[str, Any]:
        rows = {"small": [self.time], "large": [1, self.time, 1, 2]}
        vectors = {agent: np.asarray(rows[agent], np.float32) for agent in self.agents}
        if self._masks != "observation":
            return vectors
        masks = {agent: self._legal(agent).astype(np.int8) for agent in self.agents}
        return {agent: {"observation": vectors[agent], "action_mask": masks[agent]} for agent in self.agents}
