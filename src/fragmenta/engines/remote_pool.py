"""The coordinator's view of environments in other processes: it only starts their episodes."""

from collections.abc import Callable

import numpy as np

from fragmenta_host.pool import Pool


class RemotePool(Pool):
    """Forwards resets to the processes that host the environments."""

    def __init__(self, pool: Pool, ask: Callable[[np.ndarray], list[list[np.ndarray]]]) -> None:
        super().__init__(pool.spec, pool.options, (pool.description, pool.step_seconds))
        self._ask = ask

    def reset(self, seeds: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Start an episode in one environment per seed; returns observations, and which agents take part."""
        alive, *observation = (np.concatenate(column) for column in zip(*self._ask(seeds), strict=True))
        return list(observation), alive
