"""A user-defined PettingZoo parallel environment whose agents drop out at known steps."""

from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv


class parallel_env(ParallelEnv[str, np.ndarray, int]):
    """Agent i observes its index, the step, and a random number; its reward is its action.

    `leaves` says when each agent terminates; `limit` truncates the remaining ones. An action for an agent
    that has dropped out is an error.
    """

    metadata = {"name": "vanishing_team", "render_modes": []}  # noqa: RUF012

    def __init__(self, leaves: tuple[int | None, ...] = (2, 3, None), limit: int = 5, odd: bool = False) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(len(leaves))]
        self._leaves, self._limit, self._odd = leaves, limit, odd

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(-10, 10, (4 if self._odd and agent == "agent_1" else 3,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or not hasattr(self, "_chance"):
            self._chance = np.random.default_rng(seed)
        self.time = 0
        self.agents = list(self.possible_agents)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents), f"{set(actions)} acted, but {set(self.agents)} are there"
        self.time += 1
        observations, rewards = self._observations(), {agent: float(action) for agent, action in actions.items()}
        terminated = {agent: self._leaves[int(agent[-1])] == self.time for agent in self.agents}
        truncated = dict.fromkeys(self.agents, self.time >= self._limit)
        self.agents = [agent for agent in self.agents if not terminated[agent] and not truncated[agent]]
        return observations, rewards, terminated, truncated, {agent: {} for agent in observations}

    def _observations(self) -> dict[str, np.ndarray]:
        luck = self._chance.normal(size=len(self.possible_agents))
        return {a: np.asarray([int(a[-1]), self.time, luck[int(a[-1])]], np.float32) for a in self.agents}
