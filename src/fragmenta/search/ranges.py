"""The ranges of a search: listed values, or an interval on a linear or logarithmic scale."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from fragmenta.algorithms import Algorithm
from fragmenta.errors import ConfigError, unknown_field

GRAMMAR = "write listed values as 1,2,3 or an interval as uniform:LOW:HIGH or log:LOW:HIGH, for a grid with :POINTS"


@dataclasses.dataclass(frozen=True)
class Choice:
    """Some values, in the order given."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """The value at a share of the way through the list, from 0 to 1, exclusive."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def grid(self, name: str) -> tuple[Any, ...]:
        """All values."""
        return self.values

    def moved(self, value: Any, up: bool) -> Any:
        """The next or the previous value."""
        place = self.values.index(value) + (1 if up else -1)
        return self.values[min(max(place, 0), len(self.values) - 1)]


STEP = 1.25
"""The factor by which population-based training changes a number."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """All numbers from `low` to `high`, uniform in themselves or in their logarithm; `whole` for integers."""

    low: float
    high: float
    logarithmic: bool
    whole: bool
    points: int | None = None
    """How many values a grid takes from it."""

    def at(self, share: float) -> float | int:
        """The number at a share of the way from low to high."""
        if self.logarithmic:
            number = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            number = self.low + share * (self.high - self.low)
        return self._inside(number)

    def grid(self, name: str) -> tuple[Any, ...]:
        """`points` numbers at equal distances, both ends included; ConfigError if the number of points is not given."""
        if self.points is None:
            kind = "log" if self.logarithmic else "uniform"
            text = f"{name}={kind}:{self.low:g}:{self.high:g}"
            raise ConfigError(f"a grid needs a number of points for {text}: write {text}:5, or use --method random")
        return tuple(dict.fromkeys(self.at(i / max(self.points - 1, 1)) for i in range(self.points)))

    def moved(self, value: float, up: bool) -> float | int:
        """A number 25% higher or lower, within the interval."""
        return self._inside(value * STEP if up else value / STEP)

    def _inside(self, number: float) -> float | int:
        number = min(max(number, self.low), self.high)
        return round(number) if self.whole else float(number)


Range = Choice | Interval


def parse_search(words: Sequence[str]) -> dict[str, str]:
    """Ranges by field, from `FIELD=RANGE` as on the command line."""
    search: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.lstrip("-").replace("-", "_")
        if not equals or not text:
            raise ConfigError(f"search has '{word}': write FIELD=RANGE, as in learning_rate=log:1e-4:1e-2")
        if name in search:
            raise ConfigError(f"search has '{name}' twice: give each hyper-parameter one range")
        search[name] = text
    return search


def read_ranges(algorithm: Algorithm, search: Mapping[str, str | Sequence[Any]]) -> dict[str, Range]:
    """The ranges of a search by field: each is text as on the command line, or a sequence of values."""
    if not search:
        raise ConfigError("search is empty: name at least one hyper-parameter, as in learning_rate=log:1e-4:1e-2")
    kinds = {field.name: _kind(algorithm, field.name) for field in dataclasses.fields(algorithm) if field.init}
    for name in search:
        if name not in kinds:
            raise unknown_field(f"hyper-parameter of {type(algorithm).__name__}", name, kinds)
    return {
        name: _parsed(name, values, kinds[name])
        if isinstance(values, str)
        else Choice(_distinct(name, [_as_kind(value, kinds[name]) for value in values]))
        for name, values in search.items()
    }


def _kind(algorithm: Algorithm, name: str) -> type:
    """The type of a field's values: int, float, bool, str or tuple, or object for others."""
    try:
        hint = typing.get_type_hints(type(algorithm)).get(name)
    except NameError:  # an annotation that only a type checker can resolve
        hint = None
    hint = hint or type(getattr(algorithm, name))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    hint = typing.get_origin(hint) or hint
    return hint if hint in (int, float, bool, str, tuple) else object


def _as_kind(value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return tuple(value) if kind is tuple and isinstance(value, list) else value


def _parsed(name: str, text: str, kind: type) -> Range:
    scale, *ends = text.split(":")
    if scale in ("uniform", "log") and ends:
        return _interval(name, text, scale == "log", ends, kind)
    if kind is object:
        raise ConfigError(f"values of {name} cannot be written as text: search it in Python, as a sequence of values")
    return Choice(_distinct(name, [_value(name, word, kind) for word in text.split(",")]))


def _interval(name: str, text: str, logarithmic: bool, ends: list[str], kind: type) -> Interval:
    if kind not in (int, float):
        raise ConfigError(f"search has {name}={text}, but {name} is not a number: list its values, as in a,b")
    try:
        low, high = float(ends[0]), float(ends[1])
        points = int(ends[2]) if len(ends) > 2 else None
    except (ValueError, IndexError):
        raise ConfigError(f"search has {name}={text}: {GRAMMAR}") from None
    if len(ends) > 3 or not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"search has {name}={text}: {GRAMMAR}")
    if low >= high or (logarithmic and low <= 0):
        needed = "0 < LOW < HIGH" if logarithmic else "LOW < HIGH"
        raise ConfigError(f"search has {name}={text}: it needs {needed}")
    if points is not None and points < 2:
        raise ConfigError(f"search has {name}={text}: a grid needs at least 2 points of an interval")
    return Interval(low, high, logarithmic, kind is int, points)


def _value(name: str, word: str, kind: type) -> Any:
    """A value of a field from text; the numbers of a tuple are joined with x, as in 64x64."""
    readers = {int: int, float: float, str: str, bool: {"true": True, "false": False}.__getitem__, tuple: _tuple}
    try:
        return readers[kind](word.strip().lower() if kind is bool else word.strip())
    except (ValueError, KeyError):
        expected = {int: "whole numbers", float: "numbers", bool: "true or false", tuple: "numbers joined by x (64x64)"}
        raise ConfigError(f"search has '{word}' for {name}, which takes {expected[kind]}: {GRAMMAR}") from None


def _tuple(word: str) -> tuple[int | float, ...]:
    return tuple(int(part) if part.isdigit() else float(part) for part in word.split("x"))


def _distinct(name: str, values: list[Any]) -> tuple[Any, ...]:
    if not values:
        raise ConfigError(f"search has no values for {name}: {GRAMMAR}")
    if len(set(values)) < len(values):
        raise ConfigError(f"search has a value of {name} twice: list each value once")
    return tuple(values)
