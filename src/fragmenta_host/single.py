"""One environment, whatever package it is from, as the loop over many of them sees it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from fragmenta_core.arrays import Description

Seen = tuple[Any, Any]
"""What an episode begins with: the observation, and what else there is to say."""
StepResult = tuple[Any, Any, Any, Any, Any]
"""What one step led to, before any reset: observation, reward, terminated, truncated, and what else there is to say.

Both are just what Gymnasium's environments return: to make anything else of it costs a part of every step.
"""


class Single(Protocol):
    """An environment that can be stepped on its own; adapters make these."""

    description: Description

    def reset(self, seed: int | None) -> Seen:
        """Start an episode; with a seed, the one that belongs to it."""
        ...

    step: Callable[[Any], StepResult]
    """One step, with an entry of what `actions` gave."""

    def parts(self, observations: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """For every array of the description, those of several observations."""
        ...

    def alive(self, said: Sequence[Any]) -> Any:
        """Who takes part, from what else there was to say with several observations."""
        ...

    def actions(self, rows: np.ndarray) -> Any:
        """What the environment takes, from rows of the description's action space; one entry per row."""
        ...

    def random_action(self) -> Any:
        """An action at random, for measuring."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...
