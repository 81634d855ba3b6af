"""Tables of a TOML file whose values are checked as they are read: an error names the file, the key and the value."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from fragmenta.errors import ConfigError, closest

LARGEST = 2**16
"""Upper limit of whole numbers: a file of a few lines must not fill the memory."""
WHOLE = f"a whole number from 1 to {LARGEST}"
POSITIVE = "a number more than 0, from 1e-9 to 1e9"
NAME = "a name in quotes"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a file that describes machines; `title` is what messages call it, empty for the whole file."""

    values: dict[str, Any]
    title: str
    file: str

    def text(self, key: str, default: str | None = None) -> str:
        """The name under this key."""
        value = self._value(key, NAME, default)
        if not isinstance(value, str) or not value.isprintable() or not value.strip():
            raise self.rejected(key, NAME)
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """The whole number under this key, at least 1."""
        value = self._value(key, WHOLE, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
            raise self.rejected(key, WHOLE)
        return value

    def number(self, key: str, hint: str = "") -> float:
        """The number under this key, more than 0."""
        value = self._value(key, f"{POSITIVE}{hint}")
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-9 <= value <= 1e9:  # NaN is not
            raise self.rejected(key, POSITIVE)
        return float(value)

    def table(self, key: str, keys: Sequence[str], expected: str) -> "Table":
        """The table under this key, which may have these keys."""
        value = self._value(key, expected)
        if not isinstance(value, dict):
            raise self.rejected(key, expected)
        return table_of(value, f"{key}{self._owner()}", self.file, keys)

    def tables(self, key: str, keys: Sequence[str], expected: str) -> "list[Table]":
        """The tables of the list under this key, at least one."""
        values = self._value(key, expected)
        if not isinstance(values, list) or not values or not all(isinstance(value, dict) for value in values):
            raise self.rejected(key, expected)
        names = [value.get("name") for value in values]
        titles = [f"{key} {name!r}" if isinstance(name, str) else f"{key} {i}" for i, name in enumerate(names, 1)]
        return [table_of(value, title, self.file, keys) for value, title in zip(values, titles, strict=True)]

    def rejected(self, key: str, expected: str) -> ConfigError:
        """The error for a value that is not what was expected."""
        try:
            value = json.dumps(self.values[key], default=str)
        except ValueError:  # Python does not print whole numbers of thousands of digits
            value = "a number too long to show"
        value = value if len(value) <= 60 else f"{value[:56]} ..."
        return ConfigError(f"{key}{self._owner()} is {value} in machines '{self.file}': expected {expected}")

    def missing(self, key: str, expected: str) -> ConfigError:
        """The error for a key without which the table says too little."""
        return ConfigError(f"{key}{self._owner()} is missing in machines '{self.file}': expected {expected}")

    def _value(self, key: str, expected: str, default: Any = None) -> Any:
        value = self.values.get(key, default)
        if value is None:
            raise self.missing(key, expected)
        return value

    def _owner(self) -> str:
        return f" of {self.title}" if self.title else ""


def table_of(values: dict[str, Any], title: str, file: str, keys: Sequence[str]) -> Table:
    """A table that has only these keys; ConfigError, with the one that was probably meant, if it has others."""
    for key in values:
        if key not in keys:
            owner, match = f" of {title}" if title else "", closest(key, keys)
            hint = f"did you mean '{match}'? " if match else ""
            choices = f"{hint}choose from {', '.join(keys)}"
            raise ConfigError(f"unknown key {key!r}{owner} in machines '{file}': {choices}")
    return Table(values, title, file)
