"""What one step of some environments led to, read from the rows that they share with whoever steps them."""

from typing import NamedTuple

import numpy as np

from fragmenta_core.arrays import Arrays, Description
from fragmenta_core.faults import Fault


class Stepped(NamedTuple):
    """One step of some environments, as lists of arrays with a row each."""

    observation: list[np.ndarray]
    next_observation: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    alive: np.ndarray
    next_alive: np.ndarray
    ended: np.ndarray
    """Whose episode ended, in either way."""


def read(arrays: Arrays, rows: slice) -> Stepped:
    """Arrays of its own: those that are shared change with the next step."""
    following = [leaf[rows].copy() for leaf in arrays.next]
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
        return Stepped(following, following, reward, terminated, truncated, alive, next_alive, ended)
    now = [leaf.copy() for leaf in following]
    for leaf, after_reset in zip(now, arrays.observation, strict=True):
        leaf[ended] = after_reset[rows][ended]
    next_alive = next_alive & ~terminated.reshape(-1, *[1] * (next_alive.ndim - 1))
    return Stepped(now, following, reward, terminated, truncated, alive, next_alive, ended)


def wrong_numbers(description: Description, found: Stepped, low: int) -> list[Fault]:
    """A fault for every environment that showed or paid a number that is none; the first of them has index `low`."""
    wrong = wrong_observations(description, found.next_observation, low)
    if found.observation is not found.next_observation:
        wrong += wrong_observations(description, found.observation, low)
    return _distinct(wrong + _wrong("reward", found.reward, low))


def wrong_observations(description: Description, leaves: list[np.ndarray], low: int) -> list[Fault]:
    """A fault for every environment that showed a number that is none."""
    names = (name for name, _, _ in description.observation_leaves)
    return _distinct([fault for name, leaf in zip(names, leaves, strict=True) for fault in _wrong(name, leaf, low)])


def _wrong(name: str, leaf: np.ndarray, low: int) -> list[Fault]:
    if leaf.dtype.kind != "f" or leaf.size == 0:
        return []
    least = np.minimum.reduce(leaf, axis=None)  # is NaN if anything is: one pass, and nothing is allocated
    if least == least:
        return []
    rows = np.flatnonzero(np.isnan(leaf.reshape(len(leaf), -1)).any(axis=1))
    return [Fault(low + int(i), f"returned NaN in its {name}, expected numbers") for i in rows]


def _distinct(faults: list[Fault]) -> list[Fault]:
    """The first of every environment."""
    return list({fault.index: fault for fault in reversed(faults)}.values())[::-1] if len(faults) > 1 else faults
