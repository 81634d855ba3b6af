"""How environments are stepped: here one after the other, in threads, in processes, or by their own package."""

import dataclasses
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from fragmenta_host.arrays import Arrays, Description, nameless_file, shared
from fragmenta_host.catalogue import Spec, single_maker, vector_class
from fragmenta_host.faults import Fault
from fragmenta_host.group import Group
from fragmenta_host.messages import receive
from fragmenta_host.process import GoneError, WorkerProcess
from fragmenta_host.worker import FAILED, STEP


class Backend(Protocol):
    """Steps environments whose rows are in `arrays`: actions are read there, everything else is written there."""

    arrays: Arrays

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Start an episode in every environment, each with its own seed."""
        ...

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """One step of those from `low` to below `high`: what failed, and which were started anew since their last."""
        ...

    def restart(self, fault: Fault, seeds: np.ndarray) -> list[Fault]:
        """Start anew what failed; what fails in that."""
        ...

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """Whether what failed was started anew for another lane already; if not, that lane is about to do it."""
        ...

    def close(self) -> None:
        """End everything that was started."""
        ...


class InProcess:
    """One after the other in the caller's thread, or in several threads; an environment that crashes ends the run."""

    def __init__(self, spec: Spec, description: Description, count: int, threads: int) -> None:
        self.arrays = Arrays(description, count)
        self._groups = [Group(single_maker(spec), self.arrays, i, threads) for i in range(threads)]
        self._threads = ThreadPoolExecutor(threads, "fragmenta-envs") if threads > 1 else None
        self._built = False

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build what is not there yet, and start episodes."""
        for group in self._groups if not self._built else ():
            if faults := group.build():
                return faults
        self._built = True
        return [fault for group in self._groups for fault in group.reset(seeds)]

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """One step, in as many threads as there are groups."""
        if self._threads is None:
            return self._groups[0].step(low, high), []
        found = self._threads.map(lambda group: group.step(low, high), self._groups)
        return [fault for faults in found for fault in faults], []

    def restart(self, fault: Fault, seeds: np.ndarray) -> list[Fault]:
        """A new environment in place of the one that failed."""
        group = self._groups[fault.index % len(self._groups)]
        return group.rebuild(fault.index, int(seeds[fault.index]))

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """Environments fail one by one here."""
        return False

    def close(self) -> None:
        """Close all environments and end the threads."""
        if self._threads:
            self._threads.shutdown()
        for group in self._groups:
            group.close()


class Processes:
    """In worker processes: process i has every environment whose index leaves i, so each lane uses all of them."""

    def __init__(
        self, spec: Spec, description: Description, count: int, workers: Sequence[WorkerProcess], timeout: float
    ) -> None:
        self._spec, self._description, self._count, self._timeout = spec, description, count, timeout
        self._memory = nameless_file(Arrays(description, count).bytes)
        self.arrays = shared(description, count, self._memory)
        self._workers = list(workers)
        self._generations = [0] * len(workers)
        self._seen: dict[tuple[int, int], list[int]] = {}
        self._lock = threading.RLock()
        self._built = False

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build what is not there yet, all processes at once, and start episodes."""
        faults = [] if self._built else self._everywhere(self._begin_building)
        self._built = not faults
        return faults or self._everywhere(lambda i: self._begin_reset(i, seeds))

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """Let every process do its share, and wait for all."""
        generations = self._seen.setdefault((low, high), list(self._generations))
        faults, fresh, asked = [], [], []
        for i in range(len(self._workers)):
            if generations[i] != self._generations[i]:  # lost while another lane was using it
                fresh += [index for index in self._indices(i) if low <= index < high]
                generations[i] = self._generations[i]
                continue
            try:
                lane = self._lane(i, low, high)
                lane.sendall(STEP)
                asked.append((i, lane))
            except (GoneError, OSError):
                faults.append(self._lost(i, self._workers[i].gone(None)))
        for i, lane in asked:
            try:
                reply = lane.recv(1)
                if not reply:
                    raise ConnectionResetError
                if reply == FAILED:
                    faults += [Fault(**found) for found in receive(lane)[0]["faults"]]
            except TimeoutError:
                faults.append(self._lost(i, self._workers[i].gone(self._timeout)))
            except OSError:
                faults.append(self._lost(i, self._workers[i].gone(None)))
        return faults, fresh

    def restart(self, fault: Fault, seeds: np.ndarray) -> list[Fault]:
        """A new environment, or a new process with all of its environments if the old one is gone."""
        i = fault.index % len(self._workers)
        with self._lock:
            if self._workers[i].process.poll() is None:
                try:
                    order = {"order": "rebuild", "index": fault.index, "seed": int(seeds[fault.index])}
                    return _faults(self._workers[i].order(order, self._timeout))
                except GoneError as gone:
                    return [self._lost(i, gone)]
            self._workers[i].close()
            self._workers[i] = WorkerProcess()
            self._generations[i] += 1
            try:
                self._workers[i].order(prepare(self._spec, self._description), self._timeout)
                self._begin_building(i)
                if faults := _faults(self._workers[i].finish(self._timeout)):
                    return faults
                self._begin_reset(i, seeds)
                return _faults(self._workers[i].finish(self._timeout))
            except GoneError as gone:
                return [self._lost(i, gone)]

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """A process is lost for all lanes at once; the first to notice starts another."""
        i, seen = fault.index % len(self._workers), self._seen.get((low, high))
        if seen is None:
            return False
        done = seen[i] != self._generations[i]
        seen[i] = self._generations[i]
        if not done and self._workers[i].process.poll() is not None:
            seen[i] += 1  # this lane will have seen the one that is started next
        return done

    def close(self) -> None:
        """End all processes, and let go of the memory."""
        for worker in self._workers:
            worker.close()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def _everywhere(self, begin) -> list[Fault]:
        for i in range(len(self._workers)):
            begin(i)
        faults: list[Fault] = []
        for i, worker in enumerate(self._workers):
            try:
                faults += _faults(worker.finish(self._timeout))
            except GoneError as gone:
                faults.append(self._lost(i, gone))
        return faults

    def _begin_building(self, i: int) -> None:
        share = {"count": self._count, "first": i, "stride": len(self._workers)}
        self._workers[i].begin({"order": "build", **share}, self._memory)

    def _begin_reset(self, i: int, seeds: np.ndarray) -> None:
        self._workers[i].begin({"order": "reset", "seeds": [int(seed) for seed in seeds]})

    def _lane(self, i: int, low: int, high: int):
        lane = self._workers[i].lanes.get((low, high))
        if lane is None:
            with self._lock:
                lane = self._workers[i].open_lane(low, high, self._timeout)
        return lane

    def _indices(self, i: int) -> range:
        return range(i, self._count, len(self._workers))

    def _lost(self, i: int, gone: GoneError) -> Fault:
        """All environments of a process are lost; the one that it worked on is to blame."""
        index = int(self.arrays.busy[i]) - 1
        index = index if index >= 0 else i
        return Fault(index, str(gone), lost=tuple(other for other in self._indices(i) if other != index))


class Vectors:
    """By the package itself, in its own threads: one vector of environments per lane."""

    def __init__(self, spec: Spec, description: Description, count: int, parts: int, threads: int) -> None:
        self._spec, self._threads = spec, threads
        self.arrays = Arrays(description, count)
        size = count // parts
        self._spans = [(low, low + size) for low in range(0, count, size)]
        self._vectors: dict[tuple[int, int], Any] = {}

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build all vectors anew, because most packages take seeds only then, and start episodes."""
        self.close()
        for low, high in self._spans:
            made = vector_class(self._spec)
            vector = made(self._spec.name, self._spec.arguments, self._spec.stack, seeds[low:high], self._threads)
            self._vectors[low, high] = vector
            for target, leaf in zip(self.arrays.observation, vector.reset(), strict=True):
                target[low:high] = leaf
        self.arrays.alive[:] = True
        return []

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """One step of a lane's vector."""
        arrays, rows = self.arrays, slice(low, high)
        self._vectors[low, high].step(arrays, rows)
        return [], []

    def restart(self, fault: Fault, seeds: np.ndarray) -> list[Fault]:
        """Single environments of a vector cannot be replaced."""
        return [fault]

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """Nothing is ever started anew here."""
        return False

    def close(self) -> None:
        """Close all vectors."""
        for vector in self._vectors.values():
            vector.close()
        self._vectors.clear()


def prepare(spec: Spec, description: Description) -> dict[str, Any]:
    """The order that tells a new worker what its environments are."""
    return {"order": "prepare", "spec": dataclasses.asdict(spec), "description": description.to_json()}


def _faults(answer: dict[str, Any]) -> list[Fault]:
    return [Fault(**{**found, "lost": tuple(found["lost"])}) for found in answer.get("faults", ())]
