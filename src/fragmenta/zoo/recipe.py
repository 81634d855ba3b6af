"""A recipe: what to train, with which hyper-parameters, and which return it must reach."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.named import algorithm_from


@dataclasses.dataclass(frozen=True)
class Reference:
    """A figure that others published, to compare with."""

    name: str
    """Who published it."""
    url: str
    figure: float
    """The return that they reached, or that they call solved."""
    steps: int | None = None
    """After how many environment steps; None for a property of the environment."""
    note: str = ""
    """What was different, or how far apart their seeds are."""

    def __str__(self) -> str:
        return f"{self.name}: {self.words}"

    @property
    def words(self) -> str:
        """The figure with its steps, as text."""
        after = f" at {self.steps:,} steps" if self.steps else ""
        return f"{self.figure:,g}{after}{f' ({self.note})' if self.note else ''}"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An algorithm on an environment, with the return that every seed must reach."""

    name: str
    algorithm: str
    env: str
    steps: int
    """Environment steps in total."""
    expected: float
    """The least mean return of the latest 100 episodes of training, exploration included."""
    reference: Reference
    """What others reached, and where they say so."""
    measured: tuple[float, ...] = ()
    """What our own runs reached, one per seed; empty if the recipe was not run yet."""
    hyper_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What differs from the defaults of the algorithm."""

    @property
    def source(self) -> str:
        """What others reached, as text."""
        return str(self.reference)

    @property
    def is_measured(self) -> bool:
        """Whether we ran it."""
        return bool(self.measured)

    def make_algorithm(self, total_steps: int | None = None) -> Algorithm:
        """The algorithm with the hyper-parameters of the recipe; another number of steps makes it shorter or longer."""
        steps = self.steps if total_steps is None else total_steps
        return algorithm_from(self.algorithm, {**self.hyper_parameters, "total_steps": steps})

    def train_arguments(self, total_steps: int | None = None) -> list[str]:
        """The arguments of the `fragmenta train` that trains the same."""
        steps = self.steps if total_steps is None else total_steps
        words = ["train", self.algorithm, self.env]
        for name, value in {**self.hyper_parameters, "total_steps": steps}.items():
            words += _flag(name.replace("_", "-"), value)
        return words


def _flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{name}", *map(str, values)]
