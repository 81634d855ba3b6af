"""What an environment shows and takes: spaces as plain data, the same for every package's environments."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Integers 0 to n - 1."""

    n: int


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several integers at once, the i-th from 0 to choices[i] - 1."""

    choices: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Box:
    """Arrays of a shape, every entry between low and high."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def is_image(self) -> bool:
        """Whether it is a picture, or several on top of each other: bytes in at least three dimensions."""
        return self.dtype == "uint8" and len(self.shape) >= 3


@dataclasses.dataclass(frozen=True)
class Dict:
    """Several spaces by name; an observation of it is a dictionary."""

    spaces: tuple[tuple[str, "Space"], ...]


Space = Discrete | MultiDiscrete | Box | Dict
