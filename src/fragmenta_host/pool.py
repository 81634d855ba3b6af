"""All environments of a run: they are started, stepped in lanes, restarted if they may be, and ended."""

import dataclasses
import math
import os
import sys
import threading
import time
from typing import Any

import numpy as np

from fragmenta_core.arrays import MOST_PROCESSES, Description
from fragmenta_core.faults import EnvironmentFaultError, Fault, UnusableError
from fragmenta_host.backends import Backend, InProcess, RestartingBackend, Vectors
from fragmenta_host.catalogue import Spec, vector_class
from fragmenta_host.env_process import ENDING_SECONDS, EnvProcess, GoneError
from fragmenta_host.env_processes import EnvProcesses, Lane
from fragmenta_host.stepped import Stepped, read, wrong_numbers, wrong_observations

MODES = ("auto", "serial", "threads", "processes")
HAND_OVER_SECONDS = 60e-6
"""What one step of a lane costs more if its environments are in other processes."""
TRIAL_SECONDS = 10.0
"""How long the trial that measures a step may take."""


class ClosedPoolError(RuntimeError):
    """A step was asked for while or after the environments were ended: the run is over."""


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


class Pool:
    """The environments of one name. Knows what they are from the start; builds them at `reset`."""

    def __init__(
        self, spec: Spec, options: PoolOptions | None = None, known: tuple[Description, float] | None = None
    ) -> None:
        self.spec, self.options = spec, options or PoolOptions()
        check(self.options)
        self.mode, self.workers, self.restarted = "", 0, 0
        self._first = 0
        self.failure: BaseException | None = None
        self._backend: RestartingBackend | Vectors | None = None
        self._parts, self._count = 1, 0
        self._lock = threading.Lock()  # held by the lane that starts something anew
        self._lanes: dict[int, threading.Lock] = {}  # each is held by a step of the lane that begins there
        self._closing = False
        self._steps: dict[int, int] = {}
        self.description, self.step_seconds = known or self._describe()

    def twin(self) -> "Pool":
        """Another pool of the same environments, which need not find out again what they are."""
        return Pool(self.spec, self.options, (self.description, self.step_seconds))

    def __reduce__(self) -> Any:
        return Pool, (self.spec, self.options, (self.description, self.step_seconds))

    def open_part(self, first: int, most_workers: int) -> None:
        """A run of which this pool has a part of the environments only, from index `first` on, for one lane."""
        self._first = first
        if self.options.workers is None:
            self.options = dataclasses.replace(self.options, workers=most_workers)
        self.open(1)

    def open(self, parts: int) -> None:
        """A new run, in which so many lanes step the environments, each an equal part of them in order."""
        self.restarted, self.failure, self._closing = 0, None, False
        if parts != self._parts:
            self._parts = parts
            self._end_backend()

    def reset(self, seeds: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Start an episode in each of as many environments as there are seeds: observations, and who takes part."""
        self._seeds, self._steps, self._closing = np.array(seeds), {}, False
        try:
            if len(seeds) != self._count:
                self._end_backend()
            if self._backend is None:
                self._count, self._backend = len(seeds), self._start(len(seeds))
            while faults := self._backend.reset(self._seeds) or self._unseen(self._backend):
                self._recover(faults, 0, (0, 0))
            arrays, size = self._backend.arrays, max(1, len(seeds) // self._parts)
            shown = [leaf.copy() for leaf in arrays.observation]
            self._shown = {low: [leaf[low : low + size] for leaf in shown] for low in range(0, len(seeds), size)}
            self._lanes = {low: threading.Lock() for low in self._shown}
            return shown, arrays.alive.copy()
        except BaseException as error:
            self.failure = error
            raise

    def step(self, low: int, action: np.ndarray) -> Stepped:
        """One step of as many environments from index `low` on as there are actions."""
        low -= self._first
        if low not in self._lanes:
            raise ClosedPoolError(f"{self.spec} was never reset")
        with self._lanes[low]:
            if (backend := self._backend) is None or self._closing:
                raise ClosedPoolError(f"{self.spec} was closed")
            return self._step(backend, slice(low, low + len(action)), action)

    def _step(self, backend: Backend, rows: slice, action: np.ndarray) -> Stepped:
        arrays, low, high = backend.arrays, rows.start, rows.stop
        self._steps[low] = step = self._steps.get(low, 0) + 1
        arrays.action[rows] = action
        faults, fresh = backend.step(low, high)
        while True:
            if faults or fresh:
                for index in self._recover(faults, step, (low, high)) + fresh:
                    if low <= index < high:
                        self._cut(arrays, index, low)
            found, fresh = read(arrays, rows), []
            faults = wrong_numbers(self.description, found, low)
            if not faults:
                break
        self._shown[low] = found.observation
        return found

    def complaints(self) -> list[str]:
        """What the package's own checker says against the environment, found out in a process of its own."""
        if self.spec.is_vector:
            return []
        worker = EnvProcess()
        try:
            order = {"order": "check", "spec": dataclasses.asdict(self.spec)}
            return worker.order(order, self.options.timeout)["complaints"]
        except GoneError as gone:
            return [f"the package's own checker {gone}"]
        finally:
            worker.close()

    def close(self) -> None:
        """End all processes and threads. A step that is under way is left to end, for a while; no other begins."""
        self._closing = True
        self._end_backend()
        self.failure = None  # its traceback refers to the shared memory, and JAX keeps the pool with what it compiled

    def _describe(self) -> tuple[Description, float]:
        if self.spec.is_vector:
            if self.options.restarts:
                raise UnusableError(f"{self.spec} cannot start single environments anew: leave env_restarts out")
            return vector_class(self.spec).describe(self.spec.name, self.spec.arguments, self.spec.stack), 0.0
        worker = EnvProcess()  # ends once it has answered: until there is a reset, nothing is left running
        try:
            description = self._ask_what(worker)
            return description, self._measure(worker) if self.options.mode == "auto" else 0.0
        finally:
            worker.close()

    def _ask_what(self, worker: EnvProcess) -> Description:
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

    def _measure(self, worker: EnvProcess) -> float:
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

    def steps_here(self, count: int, parts: int) -> bool:
        """Whether so many environments will be stepped in this process: then a step may hold up all of its threads."""
        return self._choose(count, parts)[0] != "processes"

    def _choose(self, count: int, parts: int) -> tuple[str, int]:
        """Mode and number of workers: as many processes as save more than handing over to one more of them costs."""
        most = max(1, min(self.options.workers or cores(), count, MOST_PROCESSES))
        if self.spec.is_vector:
            return "vector", most
        mode, lane = self.options.mode, count / parts * self.step_seconds
        workers = most
        if self.options.workers is None and lane:
            # A step of a lane takes lane / workers, and handing it over some time for each of them: least at the root.
            workers = max(1, min(most, round(math.sqrt(lane / HAND_OVER_SECONDS))))
        if mode == "auto":
            # In a process of its own an environment may crash and be started anew.
            mode = "processes" if workers > 1 or self.options.restarts else "serial"
        return mode, 1 if mode == "serial" else workers

    def _start(self, count: int) -> RestartingBackend | Vectors:
        self.mode, self.workers = self._choose(count, self._parts)
        if self.mode == "vector":
            return Vectors(self.spec, self.description, count, self._parts, self.workers)
        if self.mode != "processes":
            return InProcess(self.spec, self.description, count, self.workers)
        return EnvProcesses(self.spec, self.description, count, self._parts, self.workers, self.options.timeout)

    def _unseen(self, backend: Backend) -> list[Fault]:
        return wrong_observations(self.description, backend.arrays.observation, 0)

    def _recover(self, faults: list[Fault], step: int, lane: Lane) -> list[int]:
        """Start anew what failed, while there are restarts left; all environments that it concerned."""
        concerned: list[int] = []
        while faults:
            concerned += [index for fault in faults for index in fault.rows]
            faults = [more for fault in faults for more in self._start_anew(fault, step, lane)]
        return concerned

    def _start_anew(self, fault: Fault, step: int, lane: Lane) -> list[Fault]:
        """One lane at a time, because a process may be lost for several at once."""
        with self._lock:
            if self._closing or self._backend is None:
                raise ClosedPoolError(f"{self.spec} was closed")
            if self._backend.caught_up(fault, *lane):
                return []
            if isinstance(self._backend, Vectors):
                raise self._fatal(fault, step, "")
            if self.restarted >= self.options.restarts:
                used = f" ({self.restarted} restarts used)"
                raise self._fatal(fault, step, used if self.restarted else "; --env-restarts N starts it anew")
            self.restarted += 1
            which = f"environment {self._first + fault.index} of {self.spec}"
            line = f"fragmenta: {which}, step {step}: {fault.what}; started anew"
            print(f"{fault.trace}{line} ({self.restarted} of {self.options.restarts})", file=sys.stderr)
            # Another seed each time: the same episode would likely fail the same way.
            self._seeds = (self._seeds + 1_000_003 * self.restarted) % 2**31
            return self._backend.restart(fault, self._seeds, *lane)

    def _fatal(self, fault: Fault, step: int, hint: str) -> EnvironmentFaultError:
        fault = dataclasses.replace(fault, index=self._first + fault.index)
        self.failure = EnvironmentFaultError(str(self.spec), fault, step, hint)
        return self.failure

    def _cut(self, arrays: Any, index: int, low: int) -> None:
        """The step of an environment that was lost: the episode is cut off where it last was, and another begins."""
        for following, shown in zip(arrays.next, self._shown[low], strict=True):
            following[index] = shown[index - low]
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
            lane.release()  # a step that begins only now finds the pool closed
        at_rest = len(free) == len(lanes)
        # Closing an environment within its step may crash; in another process it may not.
        if at_rest or isinstance(backend, EnvProcesses):
            backend.close()


def check(options: PoolOptions) -> None:
    """Refuse options that cannot be meant."""
    if options.mode not in MODES:
        raise UnusableError(f"env_mode is '{options.mode}': choose one of {', '.join(MODES)}")
    for name, least in (("workers", 1), ("restarts", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UnusableError(f"env_{name} is {value}: it must be at least {least}")
    if options.timeout <= 0:
        raise UnusableError(f"env_timeout is {options.timeout}: it must be more than 0 seconds")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
