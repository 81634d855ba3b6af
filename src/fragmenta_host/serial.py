"""Steps several environments of one kind serially, and writes their results into their rows."""

import bisect
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fragmenta_core.arrays import Arrays, Description
from fragmenta_core.faults import Fault, WrongValueError, fault_from
from fragmenta_host.nan import has_nan, nan_text
from fragmenta_host.single import ResetResult, Single, StepResult
from fragmenta_host.values import check_flags, check_rewards, observation_checks

Maker = Callable[[], Single]
STEP = "observation", "reward", "terminated", "truncated", "info"
"""The values that a step of an environment returns."""
THOROUGH = 32
"""Every how many steps observations are compared with their bounds, and the types of all other values are checked: it
takes several percent of a step of fast environments."""
BLOCK = 20
"""Steps whose mean duration is one measurement."""
RESET = "observation", "info"
"""The values that a reset of an environment returns."""
CAUGHT = (Exception, SystemExit)
"""Errors of environments; one that calls sys.exit must not end the run without a message."""


class SerialEnvs:
    """The environments with the given indices; when an episode ends, the next one starts in the same step.

    `slot` is the entry of `arrays.busy` in which this object says which environment it is working on.
    """

    def __init__(self, maker: Maker, description: Description, arrays: Arrays, indices: range, slot: int) -> None:
        self._maker, self.arrays, self._indices, self._slot = maker, arrays, indices, slot
        self._checks = observation_checks(description, arrays)
        self._members: dict[int, Single] = {}
        self._steps = 0

    def build(self) -> list[Fault]:
        """Make the missing environments; stops at the first that fails."""
        for index in self._indices:
            if index in self._members:
                continue
            self._set_busy(index)
            try:
                self._members[index] = self._maker()
            except CAUGHT as error:
                return [fault_from(index, "construction", error)]
        self._set_busy(-1)
        return []

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Start an episode in every environment, with the seed of its index."""
        faults = []
        for index, env in self._members.items():
            self._set_busy(index)
            try:
                self._write_reset(index, env.reset(int(seeds[index])), thorough=True)
            except CAUGHT as error:
                faults.append(fault_from(index, "reset", error))
        self._set_busy(-1)
        return faults

    def rebuild(self, index: int, seed: int) -> list[Fault]:
        """Replace one environment with a new one, seeded with `seed`."""
        self._set_busy(index)
        with contextlib.suppress(Exception):  # it has failed before, and is being replaced
            self._members.pop(index).close()
        try:
            self._members[index] = self._maker()
            self._write_reset(index, self._members[index].reset(seed))
        except CAUGHT as error:
            return [fault_from(index, "restart", error)]
        finally:
            self._set_busy(-1)
        return []

    def step(self, low: int, high: int) -> list[Fault]:
        """One step of the environments with low <= index < high, with the actions in their rows."""
        indices = within(self._indices, low, high)
        if not indices:
            return []
        members, busy, slot = self._members, self.arrays.busy, self._slot
        rows = slice(indices.start, indices.stop, indices.step)
        faults: list[Fault] = []
        results: dict[int, StepResult] = {}
        ended: list[int] = []
        for index, action in zip(indices, members[indices.start].actions(self.arrays.action[rows]), strict=True):
            busy[slot] = index + 1
            try:
                results[index] = members[index].step(action)
            except CAUGHT as error:
                faults.append(fault_from(index, "step", error))
        try:
            if faults:
                raise WrongValueError
            thorough = self._steps % THOROUGH == 0
            self._steps += 1
            # All at once, which is much faster.
            ended += [indices[i] for i in self._write(rows, results.values(), thorough)]
        except Exception:
            for index, result in results.items():
                try:
                    _check_length(result, STEP)
                    self._check_structure(index, result[0])
                    if len(self._write(slice(index, index + 1), [result], thorough=True)):
                        ended.append(index)
                except Exception as error:
                    faults.append(fault_from(index, "step", error))
        for index in ended:
            busy[slot] = index + 1
            try:
                self._write_reset(index, members[index].reset(None))
            except CAUGHT as error:
                faults.append(fault_from(index, "step", error))
        busy[slot] = 0
        return faults

    def _write(self, rows: slice, results: Iterable[StepResult], thorough: bool) -> np.ndarray:
        """Write step results into their rows, and return the positions of those whose episode ended.

        Raises if a value does not match the spaces.
        """
        arrays, any_member = self.arrays, self._members[rows.start]
        observations, rewards, terminated, truncated, infos = zip(*results, strict=True)
        if thorough:
            check_rewards(rewards, arrays.reward.shape[1:])
            check_flags(terminated, truncated)
        arrays.reward[rows] = rewards
        if has_nan(arrays.reward[rows]):
            raise WrongValueError(nan_text("reward"))
        for target, leaves, check in zip(arrays.next, any_member.parts(observations), self._checks, strict=True):
            block = np.array(leaves)
            check(block, block.shape[1:], thorough)
            target[rows] = block
        arrays.terminated[rows], arrays.truncated[rows] = terminated, truncated
        arrays.alive[rows] = arrays.next_alive[rows] = any_member.alive(infos)
        return np.flatnonzero(arrays.terminated[rows] | arrays.truncated[rows])

    def saved(self) -> dict[int, bytes]:
        """The environments, pickled, by index."""
        return {index: env.saved() for index, env in self._members.items()}

    def restore(self, envs: Sequence[bytes]) -> None:
        """Go on with those of these environments that have the indices of its own, which were just built."""
        for index, env in self._members.items():
            env.restore(envs[index])

    def close(self) -> None:
        """Close all environments; failures are only printed, because the run is over."""
        for index, env in self._members.items():
            try:
                env.close()
            except Exception as error:
                print(f"environment {index} could not be closed: {error}", file=sys.stderr)
        self._members.clear()

    def _write_reset(self, index: int, result: ResetResult, thorough: bool = False) -> None:
        """Write what a reset returned. Bounds are compared only at the start, because single resets are many."""
        try:
            (observation, info), member = result, self._members[index]
            for target, (part,), check in zip(
                self.arrays.observation, member.parts([observation]), self._checks, strict=True
            ):
                array = np.asarray(part)
                check(array, array.shape, thorough)
                target[index] = array
            self.arrays.alive[index : index + 1] = member.alive([info])
        except Exception:
            _check_length(result, RESET)
            self._check_structure(index, result[0])
            raise

    def _check_structure(self, index: int, observation: Any) -> None:
        if problem := self._members[index].mismatch(observation):
            raise WrongValueError(problem)

    def _set_busy(self, index: int) -> None:
        self.arrays.busy[self._slot] = index + 1


def _check_length(result: Any, names: tuple[str, ...]) -> None:
    if not isinstance(result, tuple) or len(result) != len(names):
        returned = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise WrongValueError(f"returned {returned}, expected {', '.join(names)}")


def within(indices: range, low: int, high: int) -> range:
    """The indices with low <= index < high."""
    return indices[bisect.bisect_left(indices, low) : bisect.bisect_left(indices, high)]


def step_seconds(env: Single, budget: float = 0.2) -> float:
    """The duration of one step, measured with random actions for up to `budget` seconds."""
    env.reset(0)
    durations: list[float] = []
    started = last = time.perf_counter()
    while len(durations) < 5 or (last - started < budget and len(durations) < 1_000):
        _, _, terminated, truncated, _ = env.step(env.random_action())
        if terminated or truncated:
            env.reset(None)
        durations.append((now := time.perf_counter()) - last)
        last = now
        if last - started > 5.0:
            break
    # A median of means: another program may take the core for a while, but the time of resets must count.
    blocks = [durations[i : i + BLOCK] for i in range(0, max(1, len(durations) - BLOCK + 1), BLOCK)]
    return statistics.median(statistics.fmean(block) for block in blocks)
