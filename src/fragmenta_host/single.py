"""One environment, whatever package it is from, as the loop over many of them sees it."""

from typing import Any, NamedTuple, Protocol

import numpy as np

from fragmenta_host.arrays import Description


class Seen(NamedTuple):
    """The arrays of an observation in the order of the description, and with several agents who takes part."""

    parts: list[Any]
    alive: Any = True


class Outcome(NamedTuple):
    """What one step led to, before any reset."""

    parts: list[Any]
    reward: Any
    terminated: bool
    truncated: bool
    alive: Any = True


class Single(Protocol):
    """An environment that can be stepped on its own; adapters make these."""

    description: Description

    def reset(self, seed: int | None) -> Seen:
        """Start an episode; with a seed, the one that belongs to it."""
        ...

    def step(self, action: Any) -> Outcome:
        """One step, with an entry of what `actions` gave."""
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
