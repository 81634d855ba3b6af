"""The interface of a single environment, for all packages whose environments are stepped one by one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from fragmenta_core.arrays import Description

ResetResult = tuple[Any, Any]
"""What a reset returns: the first observation, and the info."""
StepResult = tuple[Any, Any, Any, Any, Any]
"""What a step returns, before any reset: observation, reward, terminated, truncated, info.

Both are exactly what Gymnasium environments return: converting them would cost time in every step.
"""


class Single(Protocol):
    """An environment that is stepped on its own; implemented by the adapters."""

    description: Description

    def reset(self, seed: int | None) -> ResetResult:
        """Start an episode; a seed determines which one."""
        ...

    step: Callable[[Any], StepResult]
    """One step with one entry of the result of `actions`."""

    def parts(self, observations: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """Several observations regrouped: one sequence per array of the description."""
        ...

    def mismatch(self, observation: Any) -> str | None:
        """How an observation differs from the structure of its space, in words; asked only if `parts` cannot use it."""
        ...

    def alive(self, infos: Sequence[Any]) -> Any:
        """Which agents are active, given the infos of several environments."""
        ...

    def actions(self, rows: np.ndarray) -> Any:
        """Convert rows of the description's action space to the environment's own actions, one per row."""
        ...

    def random_action(self) -> Any:
        """A random action, for measuring the step time."""
        ...

    def saved(self) -> bytes:
        """The environment itself, pickled; not all have their state in it (see `episodes.can_be_pickled`)."""
        ...

    def restore(self, data: bytes) -> None:
        """Go on with an environment that was pickled, in place of its own."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...
