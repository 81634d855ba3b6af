"""Environments that run in other processes, as the coordinator sees them: it only ever starts their episodes."""

from collections.abc import Callable

import numpy as np

from fragmenta_host.pool import Pool


class RemotePool(Pool):
    """Asks the processes that have the environments."""

    def __init__(self, pool: Pool, ask: Callable[[np.ndarray], list[list[np.ndarray]]]) -> None:
        super().__init__(pool.spec, pool.options, (pool.description, pool.step_seconds))
        self._ask = ask

    def reset(self, seeds: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Start an episode in each of as many environments as there are seeds: observations, and who takes part."""
        alive, *observation = (np.concatenate(column) for column in zip(*self._ask(seeds), strict=True))
        return list(observation), alive
