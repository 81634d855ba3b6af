"""Backends that step environments in this process: serially, in threads, or by their own package."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from fragmenta_core.arrays import Arrays, Description
from fragmenta_core.faults import Fault
from fragmenta_host.catalogue import Spec, single_maker, vector_class
from fragmenta_host.guard import Busy, Guard
from fragmenta_host.nan import nan_faults
from fragmenta_host.priority import never_preempt
from fragmenta_host.serial import SerialEnvs


class Backend(Protocol):
    """Steps environments through `arrays`: reads actions from there, and writes all results there."""

    arrays: Arrays

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build missing environments, and start an episode in every environment, each with its own seed."""
        ...

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """One step of those with low <= index < high: the faults, and which were restarted since their last step."""
        ...

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """Whether what failed in this lane has already been restarted by another lane."""
        ...

    def close(self) -> None:
        """End all processes, threads and environments that were started."""
        ...


class RestartingBackend(Backend, Protocol):
    """A backend whose environments can be restarted individually."""

    def restart(self, fault: Fault, seeds: np.ndarray, low: int, high: int) -> list[Fault]:
        """Restart what failed in this lane; returns the faults of the restart."""
        ...


class InProcess:
    """Serially in the caller's thread, or in several threads. An environment that crashes ends the run; a guard says
    which one it was."""

    def __init__(self, spec: Spec, description: Description, count: int, threads: int, guard: Guard) -> None:
        self.arrays = Arrays(description, count)
        self._guard = guard
        self.arrays.busy = self._guard.busy
        self._watched = Busy(self._guard.steps, self._guard.busy)
        maker = single_maker(spec)
        self._serial_envs = [
            SerialEnvs(maker, description, self.arrays, range(i, count, threads), i) for i in range(threads)
        ]
        self._threads = ThreadPoolExecutor(threads, "fragmenta-envs") if threads > 1 else None

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build missing environments, and start episodes."""
        faults = [fault for envs in self._serial_envs for fault in envs.build()]
        return faults or [fault for envs in self._serial_envs for fault in envs.reset(seeds)]

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """One step, in all threads."""
        self._guard.steps += 1
        if self._threads is None:
            return self._serial_envs[0].step(low, high), []
        results = self._threads.map(lambda envs: envs.step(low, high), self._serial_envs)
        return [fault for faults in results for fault in faults], []

    def saved(self) -> list[bytes]:
        """The environments, pickled, in their order."""
        saved = {index: env for envs in self._serial_envs for index, env in envs.saved().items()}
        return [saved[index] for index in sorted(saved)]

    def restore(self, saved: Sequence[bytes]) -> list[Fault]:
        """Build the environments, and go on with these, which were pickled."""
        faults = [fault for envs in self._serial_envs for fault in envs.build()]
        for envs in self._serial_envs if not faults else ():
            envs.restore(saved)
        return faults

    def hanging(self, seconds: float) -> int | None:
        """The environment that has been busy for that long, if one has, if this is called repeatedly.

        From then on, the guard is silent: the caller reports it.
        """
        index = self._watched.longer_than(seconds)
        if index is not None:
            self._guard.close()
        return index

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """Never: here environments fail individually."""
        return False

    def restart(self, fault: Fault, seeds: np.ndarray, low: int, high: int) -> list[Fault]:
        """Replace the environment that failed."""
        envs = self._serial_envs[fault.index % len(self._serial_envs)]
        return envs.rebuild(fault.index, int(seeds[fault.index]))

    def close(self) -> None:
        """Close all environments and end the threads."""
        if self._threads:
            self._threads.shutdown()
        for envs in self._serial_envs:
            envs.close()
        self.arrays.busy = self.arrays.busy.copy()
        self._guard.close()


class Vectors:
    """Stepped by the package in its own threads: one vector per lane, whose environments cannot be restarted singly."""

    def __init__(self, spec: Spec, description: Description, count: int, parts: int, threads: int) -> None:
        self._spec, self._threads = spec, threads
        self._names = [name for name, _, _ in description.observation_leaves]
        self.arrays = Arrays(description, count)
        size = count // parts
        self._lanes = [(low, low + size) for low in range(0, count, size)]
        self._vectors: dict[tuple[int, int], Any] = {}

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Rebuild all vectors, because most packages take seeds only at construction, and start episodes."""
        self.close()
        # Threads that a package starts inherit the priority of the thread that makes the vector.
        with ThreadPoolExecutor(1, initializer=never_preempt) as executor:
            for low, high in self._lanes:
                self._vectors[low, high] = executor.submit(self._make, seeds[low:high]).result()
        for (low, high), vector in self._vectors.items():
            for target, leaf in zip(self.arrays.observation, vector.reset(), strict=True):
                target[low:high] = leaf
        self.arrays.alive[:] = self.arrays.next_alive[:] = True
        return nan_faults("reset", zip(self._names, self.arrays.observation, strict=True), 0)

    def _make(self, seeds: np.ndarray) -> Any:
        spec = self._spec
        return vector_class(spec)(spec.name, spec.arguments, spec.stack, seeds, self._threads)

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """One step of a lane's vector."""
        self._vectors[low, high].step(self.arrays, slice(low, high))
        after, first = ([leaf[low:high] for leaf in leaves] for leaves in (self.arrays.next, self.arrays.observation))
        named = (*zip(self._names, after, strict=True), *zip(self._names, first, strict=True))
        return nan_faults("step", (*named, ("reward", self.arrays.reward[low:high])), low), []

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """Never: nothing is restarted here."""
        return False

    def close(self) -> None:
        """Close all vectors."""
        for vector in self._vectors.values():
            vector.close()
        self._vectors.clear()
