"""Environments in worker processes, over shared memory."""

import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta_core.arrays import Arrays, Description, nameless_file, shared
from fragmenta_core.faults import Fault
from fragmenta_host.catalogue import Spec
from fragmenta_host.env_process import ENDING_SECONDS, EnvProcess, GoneError
from fragmenta_host.messages import receive
from fragmenta_host.serial import within
from fragmenta_host.stepper import FAILED, STEP

Lane = tuple[int, int]
"""The environments from the first index to below the second."""


class EnvProcesses:
    """In worker processes. Each has some of every lane's environments, so that each lane uses all of them; with no more
    processes than lanes, each has some lanes for itself, so that no lane waits for another.

    A process that is lost is lost for all lanes. Its generation counts how often it was replaced; a lane that has seen
    an older one knows that its environments there were started anew.
    """

    def __init__(
        self, spec: Spec, description: Description, count: int, parts: int, workers: int, timeout: float
    ) -> None:
        self._spec, self._description, self._count, self._timeout = spec, description, count, timeout
        self._memory = nameless_file(Arrays(description, count).bytes)
        self.arrays = shared(description, count, self._memory)
        self._workers = [EnvProcess() for _ in range(workers)]
        self._shares = shares(count, parts, workers)
        self._owner = {index: i for i, share in enumerate(self._shares) for index in share}
        self._generations = [0] * workers
        self._seen: dict[Lane, list[int]] = {}
        self._lock = threading.RLock()

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build what is not there yet, all processes at once, and start episodes."""
        return self._everywhere(self._begin_building) or self._everywhere(lambda i: self._begin_reset(i, seeds))

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """Let every process do its share, and wait for all."""
        with self._lock:  # not while one is being replaced
            workers, current = list(self._workers), list(self._generations)
        seen = self._seen.setdefault((low, high), list(current))
        faults: list[Fault] = []
        fresh: list[int] = []
        asked: list[tuple[int, EnvProcess, socket.socket]] = []
        for i, worker in enumerate(workers):
            if not within(self._shares[i], low, high):
                continue
            if seen[i] != current[i]:
                fresh += within(self._shares[i], low, high)
                seen[i] = current[i]
                continue
            try:
                lane = self._lane(worker, low, high)
                lane.sendall(STEP)
                asked.append((i, worker, lane))
            except (GoneError, OSError):
                faults.append(self._lost(i, worker.gone(None)))
        for i, worker, lane in asked:
            try:
                reply = lane.recv(1)
                if reply == FAILED:
                    faults += found_in(receive(lane)[0])
                elif not reply:
                    raise EOFError
            except TimeoutError:
                faults.append(self._lost(i, worker.gone(self._timeout)))
            except (OSError, EOFError):
                faults.append(self._lost(i, worker.gone(None)))
        return faults, fresh

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """A process is lost for all lanes at once; the first to notice starts another."""
        i, seen = self._owner[fault.index], self._seen.get((low, high))
        if seen is None or seen[i] == self._generations[i]:
            return False
        seen[i] = self._generations[i]
        return True

    def restart(self, fault: Fault, seeds: np.ndarray, low: int, high: int) -> list[Fault]:
        """A new environment, or a new process with all of its environments if the old one is gone."""
        i = self._owner[fault.index]
        with self._lock:
            try:
                if self._workers[i].process.poll() is None:
                    order = {"order": "rebuild", "index": fault.index, "seed": int(seeds[fault.index])}
                    return found_in(self._workers[i].order(order, self._timeout))
                self._workers[i].close()
                self._workers[i] = EnvProcess()
                self._begin_building(i)
                faults = found_in(self._workers[i].finish(self._timeout))
                if not faults:
                    self._begin_reset(i, seeds)
                    faults = found_in(self._workers[i].finish(self._timeout))
            except GoneError as gone:
                return [self._lost(i, gone)]
            self._generations[i] += 1
            if (low, high) in self._seen:
                self._seen[low, high][i] = self._generations[i]
            return faults

    def close(self) -> None:
        """End all processes at once, and let go of the memory."""
        for worker in self._workers:
            worker.hang_up()
        end = time.monotonic() + ENDING_SECONDS
        for worker in self._workers:
            worker.close(max(0.0, end - time.monotonic()))
        os.close(self._memory)

    def _everywhere(self, begin: Callable[[int], None]) -> list[Fault]:
        for i in range(len(self._workers)):
            begin(i)
        faults: list[Fault] = []
        for i, worker in enumerate(self._workers):
            try:
                faults += found_in(worker.finish(self._timeout))
            except GoneError as gone:
                faults.append(self._lost(i, gone))
        return faults

    def _begin_building(self, i: int) -> None:
        what = {"spec": dataclasses.asdict(self._spec), "description": self._description.to_json()}
        indices = self._shares[i]
        share = {"count": self._count, "indices": [indices.start, indices.stop, indices.step], "slot": i}
        self._workers[i].begin({"order": "build", **what, **share}, self._memory)

    def _begin_reset(self, i: int, seeds: np.ndarray) -> None:
        self._workers[i].begin({"order": "reset", "seeds": [int(seed) for seed in seeds]})

    def _lane(self, worker: EnvProcess, low: int, high: int) -> socket.socket:
        lane = worker.lanes.get((low, high))
        if lane is None:
            with self._lock:
                lane = worker.open_lane(low, high, self._timeout)
        return lane

    def _lost(self, i: int, gone: GoneError) -> Fault:
        """All environments of a process are lost; the one that it worked on is to blame."""
        index = int(self.arrays.busy[i]) - 1
        index = index if index >= 0 else self._shares[i][0]
        return Fault(index, str(gone), lost=tuple(other for other in self._shares[i] if other != index))


def shares(count: int, parts: int, workers: int) -> list[range]:
    """Which environments each of the workers has, if as many lanes as there are parts step them."""
    if workers > parts:
        return [range(i, count, workers) for i in range(workers)]
    return [range(i * count // workers, (i + 1) * count // workers) for i in range(workers)]


def found_in(answer: dict[str, Any]) -> list[Fault]:
    """The faults that a worker reports."""
    return [Fault(**{**found, "lost": tuple(found["lost"])}) for found in answer.get("faults", ())]
