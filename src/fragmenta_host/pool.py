"""The pool of a run's host environments: starts, steps, restarts and closes them."""

import dataclasses
import sys
import threading
import time
from typing import Any

import numpy as np

from fragmenta_core.arrays import Description
from fragmenta_core.faults import EnvironmentFaultError, Fault, UnusableError
from fragmenta_core.spaces import random_actions
from fragmenta_host.backends import Backend, InProcess, RestartingBackend, Vectors
from fragmenta_host.catalogue import Spec, single_maker
from fragmenta_host.choosing import SteppingMode, faster_mode, measure_stepping, mode_text, provisional_mode
from fragmenta_host.env_process import ENDING_SECONDS
from fragmenta_host.env_processes import EnvProcesses, Lane
from fragmenta_host.episodes import Episodes, can_be_pickled
from fragmenta_host.examine import describe
from fragmenta_host.guard import Guard
from fragmenta_host.options import PoolOptions, check, cores
from fragmenta_host.step_arrays import StepArrays


class ClosedPoolError(RuntimeError):
    """A step was requested while or after the environments were closed: the run is over."""


class Pool:
    """Environments of one specification: described at construction, built at `reset`, stepped in lanes.

    A lane is a contiguous, equal part of the environments, stepped by one replica.
    """

    def __init__(
        self, spec: Spec, options: PoolOptions | None = None, measured: tuple[Description, float] | None = None
    ) -> None:
        self.spec, self.options = spec, options or PoolOptions()
        check(self.options)
        self.mode, self.workers, self.restarted = "", 0, 0
        self._first = 0
        self.failure: BaseException | None = None
        self._backend: RestartingBackend | Vectors | None = None
        self._parts, self._count = 1, 0
        self._lock = threading.Lock()  # held by the lane that restarts something
        self._lanes: dict[int, threading.Lock] = {}  # by first index of the lane; held during its step
        self._closing = False
        self._steps: dict[int, int] = {}
        self._most_workers, self._is_part = cores(), False
        self._measured: dict[tuple[int, int], SteppingMode] = {}  # by number of environments and lanes
        if spec.is_vector and self.options.restarts:
            raise UnusableError(f"{spec} cannot restart single environments: leave out env_restarts")
        if (bound := spec.bound_here) and (self.options.mode not in ("auto", "serial") or self.options.restarts):
            advice = "use env_mode 'serial' without restarts, or pass a function that makes it and can be pickled"
            raise UnusableError(f"{spec} cannot be copied to another process ({bound.reason}): {advice}")
        self.description, self.step_seconds = measured or describe(
            spec, self.options.timeout, measures=self.options.mode == "auto"
        )
        self.spec = dataclasses.replace(spec, info_masks=self.description.info_masks)

    def twin(self, mode: str | None = None) -> "Pool":
        """Another pool of the same environments, with everything already known about them, maybe in another mode."""
        options = dataclasses.replace(self.options, mode=mode or self.options.mode)
        twin = Pool(self.spec, options, (self.description, self.step_seconds))
        twin._measured = self._measured
        return twin

    def __reduce__(self) -> Any:
        return Pool, (self.spec, self.options, (self.description, self.step_seconds))

    def open_part(self, first: int, max_workers: int) -> None:
        """Start a run in which this pool has only one lane of the environments, from index `first` on."""
        self._first, self._most_workers, self._is_part = first, max_workers, True
        self.open(1)

    def open(self, parts: int) -> None:
        """Start a run in which the environments are stepped in `parts` lanes."""
        self.restarted, self.failure, self._closing = 0, None, False
        if parts != self._parts:
            self._parts = parts
            self._end_backend()

    def can_divide(self, parts: int) -> bool:
        """Whether the same environments can be stepped in `parts` lanes from now on."""
        if parts == self._parts or isinstance(self._backend, InProcess):
            return True
        return isinstance(self._backend, EnvProcesses) and self._backend.all_caught_up

    def divide(self, parts: int) -> None:
        """Step the same environments in `parts` lanes from now on; between two steps, if that can be."""
        if parts == self._parts:
            return
        self._parts = parts
        step, size = max(self._steps.values(), default=0), self._count // parts
        observation = [np.concatenate(leaves) for leaves in zip(*self._last_observation.values(), strict=True)]
        starts = range(0, self._count, size)
        self._last_observation = {low: [leaf[low : low + size] for leaf in observation] for low in starts}
        self._lanes, self._steps = {low: threading.Lock() for low in starts}, dict.fromkeys(starts, step)

    def can_take_over(self, count: int, parts: int) -> bool:
        """Whether `count` environments of other processes can go on here, in `parts` lanes."""
        is_single = not (self.spec.is_vector or self.spec.bound_here)
        return is_single and self.steps_here(count, parts) and can_be_pickled(single_maker(self.spec))

    def episodes(self) -> Episodes:
        """Its environments between two steps, for a pool of another process."""
        assert isinstance(self._backend, InProcess), "`steps_here` says so"
        observation = [np.concatenate(leaves) for leaves in zip(*self._last_observation.values(), strict=True)]
        return Episodes(self._seeds, max(self._steps.values(), default=0), observation, self._backend.saved())

    def take_over(self, episodes: Episodes, parts: int) -> None:
        """Go on with environments of other processes, in `parts` lanes."""
        self._end_backend()
        self._count, self._parts, self._seeds = len(episodes.envs), 0, episodes.seeds
        choice = self._choice(self._count, parts)[0]
        self._backend = backend = self._start(choice if choice.mode == "threads" else SteppingMode("serial", 1))
        assert isinstance(backend, InProcess)
        if faults := backend.restore(episodes.envs):
            raise self._fatal(faults[0], episodes.step, "")
        self._last_observation, self._steps = {0: episodes.observation}, {0: episodes.step}
        self.divide(parts)

    def settle(self, count: int, parts: int) -> None:
        """Decide how `count` environments are stepped in `parts` lanes, by a measurement where nothing else decides.

        Processes that are the faster way stay for the run, with new environments; `close` ends them.
        """
        candidate, is_certain = self._provisional(count, parts)
        if is_certain or (count, parts) in self._measured:
            return
        self._end_backend()
        self._count, self._parts = count, parts
        self._backend = backend = self._start(candidate)
        assert isinstance(backend, EnvProcesses)
        times = None
        if not backend.reset(np.arange(count)):
            size, actions = count // parts, random_actions(self.description.action, self.description.rows(count))
            lanes = [(low, low + size) for low in range(0, count, size)]
            times = measure_stepping(backend, actions, lanes, count * self.step_seconds)
        self._measured[count, parts] = choice = faster_mode(times, candidate.workers)
        if choice.mode == "serial" or times is None:
            self._end_backend()
        else:
            backend.forget_environments()  # they may have state that no seed resets

    def reset(self, seeds: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Start an episode in one environment per seed; returns observations, and which agents are active."""
        self._seeds, self._steps, self._closing = np.array(seeds), {}, False
        try:
            if len(seeds) != self._count:
                self._end_backend()
            if self._backend is None:
                self.settle(len(seeds), self._parts)
            if self._backend is None:
                self._count = len(seeds)
                self._backend = self._start(self._choice(self._count, self._parts)[0])
            while faults := self._backend.reset(self._seeds):
                self._recover(faults, 0, (0, 0))
            arrays, size = self._backend.arrays, max(1, len(seeds) // self._parts)
            observation, starts = [leaf.copy() for leaf in arrays.observation], range(0, len(seeds), size)
            self._last_observation = {low: [leaf[low : low + size] for leaf in observation] for low in starts}
            self._lanes = {low: threading.Lock() for low in starts}
            return observation, arrays.alive.copy()
        except BaseException as error:
            self.failure = error
            raise

    def step(self, low: int, action: np.ndarray) -> StepArrays:
        """One step of the environments from index `low` on, one per action."""
        low -= self._first
        if low not in self._lanes:
            raise ClosedPoolError(f"{self.spec} was never reset")
        with self._lanes[low]:
            if (backend := self._backend) is None or self._closing:
                raise ClosedPoolError(f"{self.spec} was closed")
            return self._step(backend, slice(low, low + len(action)), action)

    def _step(self, backend: Backend, rows: slice, action: np.ndarray) -> StepArrays:
        arrays, low, high = backend.arrays, rows.start, rows.stop
        self._steps[low] = step = self._steps.get(low, 0) + 1
        arrays.action[rows] = action
        faults, fresh = backend.step(low, high)
        if faults or fresh:
            for index in self._recover(faults, step, (low, high)) + fresh:
                if low <= index < high:
                    self._truncate(arrays, index, low)
        # Copies, because the next step overwrites the arrays while programs may still read these.
        next_observation = [leaf[rows].copy() for leaf in arrays.next]
        reward, terminated, truncated = (
            array[rows].copy() for array in (arrays.reward, arrays.terminated, arrays.truncated)
        )
        alive, next_alive = arrays.alive[rows], arrays.next_alive[rows]
        if alive.ndim > 1:
            alive, next_alive = alive.copy(), next_alive.copy()
        ended, observation = terminated | truncated, next_observation
        if ended.any():
            observation = [leaf.copy() for leaf in next_observation]
            for leaf, after_reset in zip(observation, arrays.observation, strict=True):
                leaf[ended] = after_reset[rows][ended]
            next_alive = next_alive & ~terminated.reshape(-1, *[1] * (next_alive.ndim - 1))
        self._last_observation[low] = observation
        return StepArrays(observation, next_observation, reward, terminated, truncated, alive, next_alive, ended)

    def hanging(self) -> EnvironmentFaultError | None:
        """The fault of an environment that hangs in this process, as found by another thread that asks repeatedly."""
        backend, timeout = self._backend, self.options.timeout
        index = backend.hanging(timeout) if isinstance(backend, InProcess) else None
        if index is None:
            return None
        fault, step = Fault(index, f"did not finish within {timeout:g} s"), max(self._steps.values(), default=0)
        return self._fatal(fault, step, "; use --env-mode processes --env-restarts N to restart it")

    def close(self) -> None:
        """End all processes and threads. A running step may finish, up to a time limit; no other begins."""
        self._closing = True
        self._end_backend()
        self.failure = None  # its traceback keeps the shared memory alive, and JAX keeps the pool with compiled code

    def where(self, count: int, parts: int) -> str:
        """A description of how `count` environments will be stepped in `parts` lanes, as far as that is settled."""
        return "on the host, stepped " + mode_text(self.spec, *self._choice(count, parts), self.step_seconds)

    def steps_here(self, count: int, parts: int) -> bool:
        """Whether `count` environments may be stepped in this process, where a step may block all threads."""
        choice, is_settled = self._choice(count, parts)
        return choice.mode != "processes" or not is_settled

    def _choice(self, count: int, parts: int) -> tuple[SteppingMode, bool]:
        """How they are stepped, and whether that is settled."""
        choice, is_certain = self._provisional(count, parts)
        measured = None if is_certain else self._measured.get((count, parts))
        return measured or choice, is_certain or measured is not None

    def _provisional(self, count: int, parts: int) -> tuple[SteppingMode, bool]:
        return provisional_mode(self.spec, self.options, self._most_workers, self.step_seconds, count, parts)

    def _start(self, choice: SteppingMode) -> RestartingBackend | Vectors:
        self.mode, self.workers = choice.mode, choice.workers
        if self.mode == "vector":
            return Vectors(self.spec, self.description, self._count, self._parts, self.workers)
        if self.mode != "processes":
            guard = Guard(str(self.spec), self._first, self.options.timeout, self._is_part)
            return InProcess(self.spec, self.description, self._count, self.workers, guard)
        return EnvProcesses(self.spec, self.description, self._count, self._parts, self.workers, self.options.timeout)

    def _recover(self, faults: list[Fault], step: int, lane: Lane) -> list[int]:
        """Restart what failed, while there are restarts left; returns all environments affected."""
        affected: list[int] = []
        while faults:
            affected += [index for fault in faults for index in fault.rows]
            faults = [more for fault in faults for more in self._restart(fault, step, lane)]
        return affected

    def _restart(self, fault: Fault, step: int, lane: Lane) -> list[Fault]:
        """Restart for one lane at a time, because several may lose the same process at once."""
        with self._lock:
            if self._closing or self._backend is None:
                raise ClosedPoolError(f"{self.spec} was closed")
            if self._backend.caught_up(fault, *lane):
                return []
            if isinstance(self._backend, Vectors):
                raise self._fatal(fault, step, "")
            if self.restarted >= self.options.restarts:
                used = f" ({self.restarted} restarts used)"
                raise self._fatal(fault, step, used if self.restarted else "; use --env-restarts N to restart it")
            self.restarted += 1
            which = f"environment {self._first + fault.index} of {self.spec}"
            line = f"fragmenta: {which}, step {step}: {fault.what}; restarted"
            print(f"{fault.trace}{line} ({self.restarted} of {self.options.restarts})", file=sys.stderr)
            # Another seed each time: the same episode would likely fail again.
            self._seeds = (self._seeds + 1_000_003 * self.restarted) % 2**31
            return self._backend.restart(fault, self._seeds, *lane)

    def _fatal(self, fault: Fault, step: int, hint: str) -> EnvironmentFaultError:
        fault = dataclasses.replace(fault, index=self._first + fault.index)
        self.failure = EnvironmentFaultError(str(self.spec), fault, step, hint)
        return self.failure

    def _truncate(self, arrays: Any, index: int, low: int) -> None:
        """Truncate the episode of a lost environment at its last observation; a new one has begun."""
        for next_observation, observation in zip(arrays.next, self._last_observation[low], strict=True):
            next_observation[index] = observation[index - low]
        arrays.reward[index], arrays.terminated[index], arrays.truncated[index] = 0.0, False, True
        arrays.next_alive[index] = True

    def _end_backend(self) -> None:
        backend, self._backend = self._backend, None
        if backend is None:
            return
        end = time.monotonic() + ENDING_SECONDS
        lanes = list(self._lanes.values())
        free = [lane for lane in lanes if lane.acquire(timeout=max(0.0, end - time.monotonic()))]
        for lane in free:
            lane.release()  # a step that begins now finds the pool closed
        idle = len(free) == len(lanes)
        # Closing an environment during its step may crash this process, but not if it is in another one.
        if idle or isinstance(backend, EnvProcesses):
            backend.close()
