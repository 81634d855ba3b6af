"""The result of one step of several environments."""

from typing import NamedTuple

import numpy as np


class StepArrays(NamedTuple):
    """The result of one step of several environments, as arrays with one row each."""

    observation: list[np.ndarray]
    next_observation: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    alive: np.ndarray
    next_alive: np.ndarray
    ended: np.ndarray
    """Whether the episode ended, terminated or truncated."""
