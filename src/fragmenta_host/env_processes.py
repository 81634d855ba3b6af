"""Environments stepped in environment processes, over shared memory."""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta_core.arrays import Arrays, Description, nameless_file, shared_arrays
from fragmenta_core.faults import Fault
from fragmenta_host.catalogue import Spec
from fragmenta_host.env_process import ENDING_SECONDS, EnvProcess, GoneError
from fragmenta_host.messages import receive
from fragmenta_host.serial import within
from fragmenta_host.stepper import FAILED, STEP

Lane = tuple[int, int]
"""The environments from the first index up to, but not including, the second."""


class EnvProcesses:
    """Steps environments in environment processes. Each process has some of every lane's environments, so that a lane
    uses all processes; with no more processes than lanes, each has whole lanes, so that no lane waits for another.

    A lost process is lost for all lanes. Its generation counts how often it was replaced; a lane that last used an
    older generation knows that its environments there were restarted.
    """

    def __init__(
        self, spec: Spec, description: Description, count: int, parts: int, processes: int, timeout: float
    ) -> None:
        self._spec, self._description, self._count, self._timeout = spec, description, count, timeout
        self._memory = nameless_file(Arrays(description, count).bytes)
        self.arrays = shared_arrays(description, count, self._memory)
        self._processes = [EnvProcess() for _ in range(processes)]
        self._shares = shares(count, parts, processes)
        self._owner = {index: i for i, share in enumerate(self._shares) for index in share}
        self._generations = [0] * processes
        self._lane_generations: dict[Lane, list[int]] = {}
        self._lock = threading.RLock()

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build missing environments, in all processes at once, and start episodes."""
        return self._everywhere(self._begin_building) or self._everywhere(lambda i: self._begin_reset(i, seeds))

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """Let every process step its share, and wait for all of them."""
        with self._lock:  # not while a process is being replaced
            processes, current = list(self._processes), list(self._generations)
        lane_generations = self._lane_generations.setdefault((low, high), list(current))
        faults: list[Fault] = []
        restarted: list[int] = []
        requests: list[tuple[int, EnvProcess, socket.socket]] = []
        for i, process in enumerate(processes):
            if not within(self._shares[i], low, high):
                continue
            if lane_generations[i] != current[i]:
                restarted += within(self._shares[i], low, high)
                lane_generations[i] = current[i]
                continue
            try:
                lane = self._lane(process, low, high)
                lane.sendall(STEP)
                requests.append((i, process, lane))
            except (GoneError, OSError):
                faults.append(self._lost(i, process.gone(None)))
        for i, process, lane in requests:
            try:
                reply = lane.recv(1)
                if reply == FAILED:
                    faults += reported_faults(receive(lane)[0])
                elif not reply:
                    raise EOFError
            except TimeoutError:
                faults.append(self._lost(i, process.gone(self._timeout)))
            except (OSError, EOFError):
                faults.append(self._lost(i, process.gone(None)))
        return faults, restarted

    @property
    def count(self) -> int:
        """The number of processes."""
        return len(self._processes)

    def seconds_in_turn(self, steps: int) -> float:
        """Seconds of that many steps of all environments, of one process after the other; GoneError if one fails."""
        seconds = 0.0
        for process in self._processes:
            answer = process.order({"order": "time", "steps": steps}, self._timeout)
            for fault in reported_faults(answer):
                raise GoneError(fault.what)
            seconds += answer["seconds"]
        return seconds

    def forget_environments(self) -> None:
        """Close all environments; the next reset makes new ones in the same processes."""
        self._everywhere(lambda i: self._processes[i].begin({"order": "forget"}))

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """A process is lost for all lanes at once; the first lane to notice replaces it."""
        i, lane_generations = self._owner[fault.index], self._lane_generations.get((low, high))
        if lane_generations is None or lane_generations[i] == self._generations[i]:
            return False
        lane_generations[i] = self._generations[i]
        return True

    @property
    def all_caught_up(self) -> bool:
        """Whether all lanes know of all environments that were restarted."""
        return all(generations == self._generations for generations in self._lane_generations.values())

    def restart(self, fault: Fault, seeds: np.ndarray, low: int, high: int) -> list[Fault]:
        """Replace the environment, or its whole process with all environments if that is gone."""
        i = self._owner[fault.index]
        with self._lock:
            try:
                if self._processes[i].process.poll() is None:
                    order = {"order": "rebuild", "index": fault.index, "seed": int(seeds[fault.index])}
                    return reported_faults(self._processes[i].order(order, self._timeout))
                self._processes[i].close()
                self._processes[i] = EnvProcess()
                self._begin_building(i)
                faults = reported_faults(self._processes[i].finish(self._timeout))
                if not faults:
                    self._begin_reset(i, seeds)
                    faults = reported_faults(self._processes[i].finish(self._timeout))
            except GoneError as gone:
                return [self._lost(i, gone)]
            self._generations[i] += 1
            if (low, high) in self._lane_generations:
                self._lane_generations[low, high][i] = self._generations[i]
            return faults

    def close(self) -> None:
        """End all processes at once, and release the memory."""
        for process in self._processes:
            process.hang_up()
        end = time.monotonic() + ENDING_SECONDS
        for process in self._processes:
            process.close(max(0.0, end - time.monotonic()))
        os.close(self._memory)

    def _everywhere(self, begin: Callable[[int], None]) -> list[Fault]:
        for i in range(len(self._processes)):
            begin(i)
        faults: list[Fault] = []
        for i, process in enumerate(self._processes):
            try:
                faults += reported_faults(process.finish(self._timeout))
            except GoneError as gone:
                faults.append(self._lost(i, gone))
        return faults

    def _begin_building(self, i: int) -> None:
        environment = {"spec": self._spec.to_json(), "description": self._description.to_json()}
        indices = self._shares[i]
        share = {"count": self._count, "indices": [indices.start, indices.stop, indices.step], "slot": i}
        self._processes[i].begin({"order": "build", **environment, **share}, self._memory)

    def _begin_reset(self, i: int, seeds: np.ndarray) -> None:
        self._processes[i].begin({"order": "reset", "seeds": [int(seed) for seed in seeds]})

    def _lane(self, process: EnvProcess, low: int, high: int) -> socket.socket:
        lane = process.lanes.get((low, high))
        if lane is None:
            with self._lock:
                lane = process.open_lane(low, high, self._timeout)
        return lane

    def _lost(self, i: int, gone: GoneError) -> Fault:
        """The fault of a lost process: blames the environment it was working on, and lists all others as lost."""
        index = int(self.arrays.busy[i]) - 1
        index = index if index >= 0 else self._shares[i][0]
        return Fault(index, str(gone), lost=tuple(other for other in self._shares[i] if other != index))


def shares(count: int, parts: int, processes: int) -> list[range]:
    """Which environments each process has, if they are stepped in `parts` lanes."""
    if processes > parts:
        return [range(i, count, processes) for i in range(processes)]
    return [range(i * count // processes, (i + 1) * count // processes) for i in range(processes)]


def reported_faults(answer: dict[str, Any]) -> list[Fault]:
    """The faults in the answer of an environment process."""
    return [Fault(**{**fault, "lost": tuple(fault["lost"])}) for fault in answer.get("faults", ())]
