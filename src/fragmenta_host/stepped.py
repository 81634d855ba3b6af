"""The result of one step of several environments, read from the arrays shared with their processes."""

from typing import NamedTuple

import numpy as np

from fragmenta_core.arrays import Arrays, Description
from fragmenta_core.faults import Fault


class Stepped(NamedTuple):
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


def read(arrays: Arrays, rows: slice) -> Stepped:
    """Copy a step's results from the shared arrays, which the next step overwrites."""
    next_observation = [leaf[rows].copy() for leaf in arrays.next]
    reward, terminated, truncated = (
        arrays.reward[rows].copy(),
        arrays.terminated[rows].copy(),
        arrays.truncated[rows].copy(),
    )
    alive, next_alive = arrays.alive[rows], arrays.next_alive[rows]
    if alive.ndim > 1:
        alive, next_alive = alive.copy(), next_alive.copy()
    ended = terminated | truncated
    if not ended.any():
        return Stepped(next_observation, next_observation, reward, terminated, truncated, alive, next_alive, ended)
    observation = [leaf.copy() for leaf in next_observation]
    for leaf, after_reset in zip(observation, arrays.observation, strict=True):
        leaf[ended] = after_reset[rows][ended]
    next_alive = next_alive & ~terminated.reshape(-1, *[1] * (next_alive.ndim - 1))
    return Stepped(observation, next_observation, reward, terminated, truncated, alive, next_alive, ended)


def nan_faults(description: Description, stepped: Stepped, low: int) -> list[Fault]:
    """A fault for every environment with NaN in its observation or reward; the first row has index `low`."""
    faults = nan_observations(description, stepped.next_observation, low)
    if stepped.observation is not stepped.next_observation:
        faults += nan_observations(description, stepped.observation, low)
    return _distinct(faults + _nan_rows("reward", stepped.reward, low))


def nan_observations(description: Description, leaves: list[np.ndarray], low: int) -> list[Fault]:
    """A fault for every environment with NaN in its observation."""
    names = (name for name, _, _ in description.observation_leaves)
    return _distinct([fault for name, leaf in zip(names, leaves, strict=True) for fault in _nan_rows(name, leaf, low)])


def _nan_rows(name: str, leaf: np.ndarray, low: int) -> list[Fault]:
    if leaf.dtype.kind != "f" or leaf.size == 0:
        return []
    least = np.minimum.reduce(leaf, axis=None)  # NaN if any element is: one pass, no allocation
    if least == least:
        return []
    rows = np.flatnonzero(np.isnan(leaf.reshape(len(leaf), -1)).any(axis=1))
    return [Fault(low + int(i), f"returned NaN in its {name}, expected numbers") for i in rows]


def _distinct(faults: list[Fault]) -> list[Fault]:
    """The first fault of every environment."""
    return list({fault.index: fault for fault in reversed(faults)}.values())[::-1] if len(faults) > 1 else faults
