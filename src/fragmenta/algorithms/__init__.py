"""Algorithms by name."""

from fragmenta.algorithms.base import Algorithm
from fragmenta.algorithms.ppo import PPO

ALGORITHMS: dict[str, type[Algorithm]] = {"ppo": PPO}

__all__ = ["ALGORITHMS", "PPO", "Algorithm"]
