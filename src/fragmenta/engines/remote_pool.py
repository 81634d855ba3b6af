"""Environments that run in other processes, as the coordinator sees them: it only ever starts their episodes."""

from collections.abc import Callable

import numpy as np

from fragmenta.engines.control import FailedError, LostError
from fragmenta.engines.errors import shown
from fragmenta_host.pool import Pool


class RemotePool(Pool):
    """Asks the processes that have the environments."""

    def __init__(self, pool: Pool, ask: Callable[[np.ndarray], list[list[np.ndarray]]]) -> None:
        super().__init__(pool.spec, pool.options, (pool.description, pool.step_seconds))
        self._ask = ask
        self.lost: LostError | FailedError | None = None
        """What became of a process as it was asked."""

    def reset(self, seeds: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Start an episode in each of as many environments as there are seeds: observations, and who takes part."""
        try:
            found = self._ask(seeds)
        except (LostError, FailedError) as error:
            # JAX, which calls this, would make another error of it.
            self.lost, self.failure = error, shown(error)
            raise
        alive, *observation = (np.concatenate(column) for column in zip(*found, strict=True))
        return list(observation), alive
