"""Step several environments of one kind, one after the other, and write what they show into their rows."""

import bisect
import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fragmenta_core.arrays import Arrays, Description
from fragmenta_core.faults import Fault, WrongValueError, raised
from fragmenta_host.single import Seen, Single, StepResult

Maker = Callable[[], Single]
STEP = "observation", "reward", "terminated", "truncated", "info"
"""What a step of an environment returns."""


class SerialEnvs:
    """The environments of some indices; where an episode ends, the next one starts in the same step.

    `slot` is the group's place among all that share the arrays: there it says which environment it works on.
    """

    def __init__(self, maker: Maker, description: Description, arrays: Arrays, indices: range, slot: int) -> None:
        self._maker, self.arrays, self._indices, self._slot = maker, arrays, indices, slot
        self._checks = checks(description)
        self._members: dict[int, Single] = {}

    def build(self) -> list[Fault]:
        """Make those that are not there yet; stops at the first that fails."""
        for index in self._indices:
            if index in self._members:
                continue
            self._at_work(index)
            try:
                self._members[index] = self._maker()
            except Exception as error:
                return [raised(index, "construction", error)]
        self._at_work(-1)
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
        indices = within(self._indices, low, high)
        if not indices:
            return []
        members, busy, slot = self._members, self.arrays.busy, self._slot
        rows = slice(indices.start, indices.stop, indices.step)
        faults: list[Fault] = []
        outcomes: dict[int, StepResult] = {}
        ended: list[int] = []
        for index, action in zip(indices, members[indices.start].actions(self.arrays.action[rows]), strict=True):
            busy[slot] = index + 1
            try:
                outcomes[index] = members[index].step(action)
            except Exception as error:
                faults.append(raised(index, "step", error))
        try:
            if faults:
                raise WrongValueError
            ended += [indices[i] for i in self._write(rows, outcomes.values())]  # all at once, which is much quicker
        except Exception:
            for index, outcome in outcomes.items():
                try:
                    if not isinstance(outcome, tuple) or len(outcome) != len(STEP):
                        what = f"{len(outcome)} values" if isinstance(outcome, tuple) else type(outcome).__name__
                        raise WrongValueError(f"returned {what}, expected {', '.join(STEP)}")
                    if len(self._write(slice(index, index + 1), [outcome])):
                        ended.append(index)
                except Exception as error:
                    faults.append(raised(index, "step", error))
        for index in ended:
            busy[slot] = index + 1
            try:
                self._show(index, members[index].reset(None))
            except Exception as error:
                faults.append(raised(index, "step", error))
        busy[slot] = 0
        return faults

    def _write(self, rows: slice, outcomes: Iterable[StepResult]) -> np.ndarray:
        """Write what steps led to into their rows, and say in which of them an episode ended.

        Raises if any of it is not what the spaces say.
        """
        arrays, any_member = self.arrays, self._members[rows.start]
        seen, arrays.reward[rows], terminated, truncated, said = zip(*outcomes, strict=True)
        for target, leaves, check in zip(arrays.next, any_member.parts(seen), self._checks, strict=True):
            block = np.array(leaves)
            check(block.shape[1:], block.dtype)
            target[rows] = block
        arrays.terminated[rows], arrays.truncated[rows] = terminated, truncated
        arrays.alive[rows] = arrays.next_alive[rows] = any_member.alive(said)
        return np.flatnonzero(arrays.terminated[rows] | arrays.truncated[rows])

    def close(self) -> None:
        """Close all environments; one that fails in that fails alone, because the run is over."""
        for index, env in self._members.items():
            try:
                env.close()
            except Exception as error:
                print(f"environment {index} could not be closed: {error}", file=sys.stderr)
        self._members.clear()

    def _show(self, index: int, seen: Seen) -> None:
        (observation, said), member = seen, self._members[index]
        for target, (part,), check in zip(
            self.arrays.observation, member.parts([observation]), self._checks, strict=True
        ):
            array = np.asarray(part)
            check(array.shape, array.dtype)
            target[index] = array
        self.arrays.alive[index : index + 1] = member.alive([said])

    def _at_work(self, index: int) -> None:
        self.arrays.busy[self._slot] = index + 1


def within(indices: range, low: int, high: int) -> range:
    """Those from `low` to below `high`."""
    return indices[bisect.bisect_left(indices, low) : bisect.bisect_left(indices, high)]


def checks(description: Description) -> list[Callable[[tuple[int, ...], Any], None]]:
    """For every array of an observation, a function that refuses a shape or type that the space does not have."""

    def check(name: str, shape: tuple[int, ...], dtype: str) -> Callable[[tuple[int, ...], Any], None]:
        known: set[Any] = set()

        def refuse(found: tuple[int, ...], found_type: Any) -> None:
            if found != shape:
                raise WrongValueError(f"returned {name} of shape {found}, expected {shape}")
            if found_type in known:
                return
            boolean = found_type.kind == "b" and dtype[0] in "iu"
            if not boolean and not np.can_cast(found_type, dtype, "same_kind"):
                raise WrongValueError(f"returned {name} of type {found_type}, expected {dtype}")
            known.add(found_type)

        return refuse

    return [check(*leaf) for leaf in description.observation_leaves]


def step_seconds(env: Single, budget: float = 0.2) -> float:
    """How long one step takes, measured with random actions for up to `budget` seconds."""
    env.reset(0)
    count, started, spent = 0, time.perf_counter(), 0.0
    while count < 5 or spent < budget:
        _, _, terminated, truncated, _ = env.step(env.random_action())
        if terminated or truncated:
            env.reset(None)
        count += 1
        spent = time.perf_counter() - started
        if count >= 1_000 or spent > 5.0:
            break
    return spent / count
