"""Ways to step environments without processes of our own: here, in threads, or by their package."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from fragmenta_core.arrays import Arrays, Description
from fragmenta_core.faults import Fault
from fragmenta_host.catalogue import Spec, single_maker, vector_class
from fragmenta_host.priority import never_preempt
from fragmenta_host.serial import SerialEnvs


class Backend(Protocol):
    """Steps environments whose rows are in `arrays`: actions are read there, everything else is written there."""

    arrays: Arrays

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build what is not there yet, and start an episode in every environment, each with its own seed."""
        ...

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """One step of those from `low` to below `high`: what failed, and which were started anew since their last."""
        ...

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """Whether what failed for this lane was started anew for another one already."""
        ...

    def close(self) -> None:
        """End everything that was started."""
        ...


class RestartingBackend(Backend, Protocol):
    """One whose environments can be started anew one by one."""

    def restart(self, fault: Fault, seeds: np.ndarray, low: int, high: int) -> list[Fault]:
        """Start anew what failed in this lane; what fails in that."""
        ...


class InProcess:
    """One after the other in the caller's thread, or in several threads; an environment that crashes ends the run."""

    def __init__(self, spec: Spec, description: Description, count: int, threads: int) -> None:
        self.arrays = Arrays(description, count)
        maker = single_maker(spec)
        self._groups = [
            SerialEnvs(maker, description, self.arrays, range(i, count, threads), i) for i in range(threads)
        ]
        self._threads = ThreadPoolExecutor(threads, "fragmenta-envs") if threads > 1 else None

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build what is not there yet, and start episodes."""
        faults = [fault for group in self._groups for fault in group.build()]
        return faults or [fault for group in self._groups for fault in group.reset(seeds)]

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """One step, in as many threads as there are groups."""
        if self._threads is None:
            return self._groups[0].step(low, high), []
        found = self._threads.map(lambda group: group.step(low, high), self._groups)
        return [fault for faults in found for fault in faults], []

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """Environments fail one by one here."""
        return False

    def restart(self, fault: Fault, seeds: np.ndarray, low: int, high: int) -> list[Fault]:
        """A new environment in place of the one that failed."""
        group = self._groups[fault.index % len(self._groups)]
        return group.rebuild(fault.index, int(seeds[fault.index]))

    def close(self) -> None:
        """Close all environments and end the threads."""
        if self._threads:
            self._threads.shutdown()
        for group in self._groups:
            group.close()


class Vectors:
    """By the package itself, in its own threads: one vector per lane, whose environments cannot be replaced singly."""

    def __init__(self, spec: Spec, description: Description, count: int, parts: int, threads: int) -> None:
        self._spec, self._threads = spec, threads
        self.arrays = Arrays(description, count)
        size = count // parts
        self._spans = [(low, low + size) for low in range(0, count, size)]
        self._vectors: dict[tuple[int, int], Any] = {}

    def reset(self, seeds: np.ndarray) -> list[Fault]:
        """Build all vectors anew, because most packages take seeds only then, and start episodes."""
        self.close()
        # Threads that a package starts inherit the priority of the one that makes the vector.
        with ThreadPoolExecutor(1, initializer=never_preempt) as aside:
            for low, high in self._spans:
                self._vectors[low, high] = aside.submit(self._make, seeds[low:high]).result()
        for (low, high), vector in self._vectors.items():
            for target, leaf in zip(self.arrays.observation, vector.reset(), strict=True):
                target[low:high] = leaf
        self.arrays.alive[:] = self.arrays.next_alive[:] = True
        return []

    def _make(self, seeds: np.ndarray) -> Any:
        spec = self._spec
        return vector_class(spec)(spec.name, spec.arguments, spec.stack, seeds, self._threads)

    def step(self, low: int, high: int) -> tuple[list[Fault], list[int]]:
        """One step of a lane's vector."""
        self._vectors[low, high].step(self.arrays, slice(low, high))
        return [], []

    def caught_up(self, fault: Fault, low: int, high: int) -> bool:
        """Nothing is ever started anew here."""
        return False

    def close(self) -> None:
        """Close all vectors."""
        for vector in self._vectors.values():
            vector.close()
        self._vectors.clear()
