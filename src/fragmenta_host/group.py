"""Step several environments of one kind, one after the other, and write what they show into their rows."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta_host.arrays import Arrays, Description
from fragmenta_host.faults import Fault, WrongValueError, raised
from fragmenta_host.single import Single

Maker = Callable[[], Single]


class Group:
    """Every `stride`-th environment from `first` on; where an episode ends, the next one starts in the same step."""

    def __init__(self, maker: Maker, arrays: Arrays, first: int, stride: int) -> None:
        self._maker, self.arrays, self._first, self._stride = maker, arrays, first, stride
        self._indices = range(first, len(arrays.reward), stride)
        self._members: dict[int, Single] = {}

    def build(self) -> list[Fault]:
        """Make all environments; stops at the first that fails."""
        for index in self._indices:
            self._at_work(index)
            try:
                self._members[index] = self._maker()
            except Exception as error:
                return [raised(index, "construction", error)]
        self._at_work(-1)
        description = next(iter(self._members.values())).description
        self._write_now = writer(description, self.arrays.observation)
        self._write_next = writer(description, self.arrays.next)
        return []

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Start an episode in each, with the seed of its index."""
        faults = []
        for index, env in self._members.items():
            self._at_work(index)
            try:
                self._show(index, env.reset(int(seeds[index])))
            except Exception as error:
                faults.append(raised(index, "reset", error))
        self._at_work(-1)
        return faults

    def rebuild(self, index: int, seed: int) -> list[Fault]:
        """Replace one environment by a new one with that seed."""
        self._at_work(index)
        with contextlib.suppress(Exception):  # it failed before; a new one takes its place
            self._members.pop(index).close()
        try:
            self._members[index] = self._maker()
            self._show(index, self._members[index].reset(seed))
        except Exception as error:
            return [raised(index, "restart", error)]
        finally:
            self._at_work(-1)
        return []

    def step(self, low: int, high: int) -> list[Fault]:
        """One step of those with indices from `low` to below `high`, by the actions in their rows."""
        start = low + (self._first - low) % self._stride
        if start >= high:
            return []
        arrays, members, busy, slot = self.arrays, self._members, self.arrays.busy, self._first
        actions = members[start].actions(arrays.action[start : high : self._stride])
        faults: list[Fault] = []
        for index, action in zip(range(start, high, self._stride), actions, strict=True):
            busy[slot] = index + 1
            try:
                parts, reward, terminated, truncated, alive = members[index].step(action)
                self._write_next(index, parts)
                arrays.reward[index] = reward
                arrays.terminated[index] = terminated
                arrays.truncated[index] = truncated
                arrays.next_alive[index] = alive
                if terminated or truncated:
                    self._show(index, members[index].reset(None))
                else:
                    arrays.alive[index] = alive
            except Exception as error:
                faults.append(raised(index, "step", error))
        busy[slot] = 0
        return faults

    def close(self) -> None:
        """Close all environments."""
        for env in self._members.values():
            env.close()

    def _show(self, index: int, seen: Any) -> None:
        self._write_now(index, seen.parts)
        self.arrays.alive[index] = seen.alive

    def _at_work(self, index: int) -> None:
        self.arrays.busy[self._first] = index + 1


def writer(description: Description, targets: list[np.ndarray]) -> Callable[[int, list[Any]], None]:
    """Writes an observation's parts into a row, and refuses those that are not what the space says."""
    expected = description.observation_leaves
    checked: list[Any] = [None] * len(expected)

    def write(index: int, parts: list[Any]) -> None:
        for i, part in enumerate(parts):
            array = part if type(part) is np.ndarray else np.asarray(part)
            name, shape, dtype = expected[i]
            if array.shape != shape:
                raise WrongValueError(f"returned {name} of shape {array.shape}, expected {shape}")
            if array.dtype is not checked[i]:
                if not np.can_cast(array.dtype, dtype, "same_kind") and array.dtype.kind + dtype[0] not in ("bi", "bu"):
                    raise WrongValueError(f"returned {name} of type {array.dtype}, expected {dtype}")
                checked[i] = array.dtype
            targets[i][index] = array

    return write


def step_seconds(env: Single, budget: float = 0.2) -> float:
    """How long one step takes, measured with random actions for up to `budget` seconds."""
    env.reset(0)
    count, started, spent = 0, time.perf_counter(), 0.0
    while count < 5 or spent < budget:
        outcome = env.step(env.random_action())
        if outcome.terminated or outcome.truncated:
            env.reset(None)
        count += 1
        spent = time.perf_counter() - started
        if count >= 1_000 or spent > 5.0:
            break
    return spent / count
