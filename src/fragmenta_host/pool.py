"""All environments of a run: they are started, stepped in lanes, restarted if they may be, and ended."""

import dataclasses
import os
import sys
import threading
from typing import Any, NamedTuple

import numpy as np

from fragmenta_host.arrays import MOST_PROCESSES, Description
from fragmenta_host.backends import Backend, InProcess, Processes, Vectors, prepare
from fragmenta_host.catalogue import Spec, vector_class
from fragmenta_host.faults import EnvironmentFaultError, Fault, UnusableError
from fragmenta_host.process import GoneError, WorkerProcess

MODES = ("auto", "serial", "threads", "processes")
HAND_OVER_SECONDS = 60e-6
"""What one step of a lane costs more if its environments are in other processes."""
TRIAL_SECONDS = 10.0
"""How long the trial that measures a step may take."""


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """How environments are stepped."""

    mode: str = "auto"
    workers: int | None = None
    """Processes or threads; as many as this process may use cores, by default."""
    restarts: int = 0
    """How many faults of environments are answered by starting them anew."""
    timeout: float = 60.0
    """Seconds that one order to a process may take, a step above all."""


class Stepped(NamedTuple):
    """One step of some environments, as lists of arrays with a row each."""

    observation: list[np.ndarray]
    next_observation: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    alive: np.ndarray
    next_alive: np.ndarray


class Pool:
    """The environments of one name. Knows what they are from the start; builds them at `reset`."""

    def __init__(self, spec: Spec, options: PoolOptions | None = None) -> None:
        self.spec, self.options = spec, options or PoolOptions()
        self.mode, self.workers, self.restarted = "", 0, 0
        self.failure: BaseException | None = None
        self._backend: Backend | None = None
        self._parts, self._count = 1, 0
        self._lock = threading.Lock()
        self._steps: dict[int, int] = {}
        self.description, self.step_seconds = self._describe()

    def open(self, parts: int) -> None:
        """Say how many lanes will step the environments, each an equal part of them in order."""
        if parts != self._parts:
            self._parts = parts
            self._end_backend()

    def reset(self, seeds: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Start an episode in each of as many environments as there are seeds: observations, and who takes part."""
        self._seeds, self._steps, self.failure = np.array(seeds), {}, None
        try:
            if len(seeds) != self._count:
                self._end_backend()
            if self._backend is None:
                self._count, self._backend = len(seeds), self._start(len(seeds))
            faults = self._backend.reset(self._seeds)
            while faults:
                faults = self._answer(faults, 0, (0, 0))
            arrays = self._backend.arrays
            self._check_numbers(0, arrays.observation, None, 0)
            shown = [leaf.copy() for leaf in arrays.observation]
            self._shown = {0: shown}
            return shown, arrays.alive.copy()
        except BaseException as error:
            self.failure = error
            raise

    def step(self, low: int, action: np.ndarray) -> Stepped:
        """One step of as many environments from index `low` on as there are actions."""
        backend, rows = self._backend, slice(low, low + len(action))
        if backend is None:
            raise RuntimeError(f"{self.spec} was closed or never reset")
        arrays = backend.arrays
        self._steps[low] = step = self._steps.get(low, 0) + 1
        arrays.action[rows] = action
        faults, fresh = backend.step(rows.start, rows.stop)
        while True:
            lost = self._recover(faults, step, (rows.start, rows.stop)) + fresh
            inside = sorted({index for index in lost if rows.start <= index < rows.stop})
            for index in inside:
                self._cut(arrays, index, low)
            following = [leaf[rows].copy() for leaf in arrays.next]
            reward = arrays.reward[rows].copy()
            faults = self._wrong_numbers(low, following, reward)
            if not faults:
                break
            fresh = []
        terminated, truncated = arrays.terminated[rows].copy(), arrays.truncated[rows].copy()
        alive, next_alive = arrays.alive[rows].copy(), arrays.next_alive[rows].copy()
        done = terminated | truncated
        now = following
        if done.any():
            now = [leaf.copy() for leaf in following]
            for leaf, after_reset in zip(now, arrays.observation, strict=True):
                leaf[done] = after_reset[rows][done]
            next_alive = next_alive & ~terminated.reshape(-1, *[1] * (next_alive.ndim - 1))
        self._shown[low] = now
        return Stepped(now, following, reward, terminated, truncated, alive, next_alive)

    def complaints(self) -> list[str]:
        """What the package's own checker says against the environment, found out in a process of its own."""
        if self.spec.is_vector:
            return []
        worker = WorkerProcess()
        try:
            worker.order(prepare(self.spec, self.description), self.options.timeout)
            return worker.order({"order": "check"}, self.options.timeout)["complaints"]
        except GoneError as gone:
            return [f"the package's own checker {gone}"]
        finally:
            worker.close()

    def close(self) -> None:
        """End all processes and threads."""
        self._end_backend()

    def _describe(self) -> tuple[Description, float]:
        if self.options.mode not in MODES:
            raise UnusableError(f"env_mode is '{self.options.mode}': choose one of {', '.join(MODES)}")
        for name, least in (("workers", 1), ("restarts", 0)):
            value = getattr(self.options, name)
            if value is not None and value < least:
                raise UnusableError(f"env_{name} is {value}: it must be at least {least}")
        if self.options.timeout <= 0:
            raise UnusableError(f"env_timeout is {self.options.timeout}: it must be more than 0 seconds")
        if self.spec.is_vector:
            return vector_class(self.spec).describe(self.spec.name, self.spec.arguments, self.spec.stack), 0.0
        worker = WorkerProcess()  # ends once it has answered: until there is a reset, nothing is left running
        try:
            description = self._ask_what(worker)
            return description, self._measure(worker) if self.options.mode == "auto" else 0.0
        finally:
            worker.close()

    def _ask_what(self, worker: WorkerProcess) -> Description:
        try:
            order = {"order": "describe", "spec": dataclasses.asdict(self.spec)}
            found = worker.order(order, self.options.timeout)
        except GoneError as gone:
            raise self._fatal(Fault(0, f"construction {gone}"), 0, "") from None
        if "unusable" in found:
            raise UnusableError(found["unusable"])
        for fault in found.get("faults", ()):
            raise self._fatal(Fault(**fault), 0, "")
        return Description.from_json(found["description"])

    def _measure(self, worker: WorkerProcess) -> float:
        """How long one step takes; for one that fails as long as can be, because it is best kept in processes."""
        try:
            found = worker.order({"order": "measure"}, min(self.options.timeout, TRIAL_SECONDS))
        except GoneError:
            found = {}
        return found.get("step_seconds", TRIAL_SECONDS)

    def where(self, count: int, parts: int) -> str:
        """How so many environments will be stepped by so many lanes, in words."""
        mode, workers = self._choose(count, parts)
        if mode == "vector":
            return f"on the host, stepped by {self.spec.package} in {workers} threads"
        how = "one after the other in this process" if mode == "serial" else f"in {workers} {mode}"
        took = f" (one step takes {self.step_seconds * 1e6:,.0f} us)" if self.step_seconds else ""
        return f"on the host, stepped {how}{took}"

    def _choose(self, count: int, parts: int) -> tuple[str, int]:
        """Mode and number of workers: processes if they save more than handing over costs, or if faults are to be
        survived."""
        workers = max(1, min(self.options.workers or cores(), count, MOST_PROCESSES))
        if self.spec.is_vector:
            return "vector", workers
        mode = self.options.mode
        if mode == "auto":
            lane = count / parts * self.step_seconds
            saved = lane - lane / workers
            mode = "processes" if saved > HAND_OVER_SECONDS or self.options.restarts else "serial"
        return mode, 1 if mode == "serial" else workers

    def _start(self, count: int) -> Backend:
        self.mode, self.workers = self._choose(count, self._parts)
        if self.mode == "vector":
            return Vectors(self.spec, self.description, count, self._parts, self.workers)
        if self.mode != "processes":
            return InProcess(self.spec, self.description, count, self.workers)
        started = [WorkerProcess() for _ in range(self.workers)]
        for worker in started:
            worker.begin(prepare(self.spec, self.description))
        for worker in started:
            worker.finish(self.options.timeout)
        return Processes(self.spec, self.description, count, started, self.options.timeout)

    def _recover(self, faults: list[Fault], step: int, lane: tuple[int, int]) -> list[int]:
        """Start anew what failed, while there are restarts left; all environments that it concerned."""
        concerned: list[int] = []
        while faults:
            concerned += [index for fault in faults for index in fault.rows]
            faults = self._answer(faults, step, lane)
        return concerned

    def _answer(self, faults: list[Fault], step: int, lane: tuple[int, int]) -> list[Fault]:
        """Start anew what failed; one lane at a time, because a process may be lost for several at once."""
        assert self._backend is not None
        again: list[Fault] = []
        for fault in faults:
            with self._lock:
                if self._backend.caught_up(fault, *lane):
                    continue
                if self.restarted >= self.options.restarts:
                    used = f" ({self.restarted} restarts used)"
                    hint = used if self.restarted else "; --env-restarts N starts it anew up to N times"
                    raise self._fatal(fault, step, hint)
                self.restarted += 1
                line = f"fragmenta: environment {fault.index} of {self.spec}, step {step}: {fault.what}; started anew"
                print(f"{fault.trace}{line} ({self.restarted} of {self.options.restarts})", file=sys.stderr)
                # Another seed each time: the same episode would likely fail the same way.
                self._seeds = (self._seeds + 1_000_003 * self.restarted) % 2**31
                again += self._backend.restart(fault, self._seeds)
        return again

    def _fatal(self, fault: Fault, step: int, hint: str) -> EnvironmentFaultError:
        self.failure = EnvironmentFaultError(str(self.spec), fault, step, hint)
        return self.failure

    def _cut(self, arrays: Any, index: int, low: int) -> None:
        """The step of an environment that was lost: the episode is cut off where it last was, and another begins."""
        first = low if low in self._shown else 0  # before a lane's first step there is what the reset showed
        for following, shown in zip(arrays.next, self._shown[first], strict=True):
            following[index] = shown[index - first]
        arrays.reward[index], arrays.terminated[index], arrays.truncated[index] = 0.0, False, True
        arrays.next_alive[index] = True

    def _wrong_numbers(self, low: int, observation: list[np.ndarray], reward: np.ndarray | None) -> list[Fault]:
        """A fault for every environment that returned a number that is none."""
        named = list(zip((name for name, _, _ in self.description.observation_leaves), observation, strict=True))
        faults = []
        for name, leaf in named + ([("reward", reward)] if reward is not None else []):
            if leaf.dtype.kind != "f" or not np.isnan(leaf).any():
                continue
            rows = np.flatnonzero(np.isnan(leaf.reshape(len(leaf), -1)).any(axis=1))
            faults += [Fault(low + int(i), f"returned NaN in its {name}, expected numbers") for i in rows]
        return faults

    def _check_numbers(self, low: int, observation: list[np.ndarray], reward: Any, step: int) -> None:
        for fault in self._wrong_numbers(low, observation, reward):
            raise self._fatal(fault, step, "")

    def _end_backend(self) -> None:
        if self._backend:
            self._backend.close()
            self._backend = None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
