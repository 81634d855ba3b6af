"""Ranges of hyper-parameters: a value outside of its range is a mistake."""

import dataclasses
import math
import sys
from typing import Any

from fragmenta.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Limit:
    """The values that a number may have; those of a tuple must each be within the limit."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False
    """Whether the value must be more than `low`, not equal to it."""
    whole: bool = False

    def problem(self, value: Any) -> str | None:
        """What the value must be, if it is not; NaN is never within a limit."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return "a whole number" if self.whole else "a number"
        if (self.low < value if self.above else self.low <= value) and value <= self.high:
            return None
        if self.high == _LARGEST and not math.isfinite(value):
            return "finite"
        if self.high < _LARGEST:
            return f"{f'more than {self.low:g} and at most' if self.above else f'from {self.low:g} to'} {self.high:g}"
        return f"{'more than' if self.above else 'at least'} {self.low:g}"


_LARGEST = sys.float_info.max
COUNT = Limit(1, whole=True)
FRACTION = Limit(0, 1)
NOT_NEGATIVE = Limit(0, _LARGEST)
POSITIVE = Limit(0, above=True)


def check_limits(hyper_parameters: Any) -> None:
    """Raise ConfigError for the first hyper-parameter outside of the `limits` of its class or a base class."""
    for kind in reversed(type(hyper_parameters).__mro__):
        for name, limit in vars(kind).get("limits", {}).items():
            value = getattr(hyper_parameters, name)
            for number in value if isinstance(value, tuple | list) else (value,):
                if problem := limit.problem(number):
                    each = "each width " if isinstance(value, tuple | list) else "it "
                    raise ConfigError(f"{name} is {_text(value)}: {each}must be {problem}")


def _text(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)
