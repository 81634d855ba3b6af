"""Errors that tell a user what to change, in one line, before anything runs."""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any

from fragmenta_core import loading
from fragmenta_core.faults import UnusableError


class ConfigError(ValueError):
    """A mistake in the user's configuration, printed as one line; exit code 2."""


class StorageError(OSError):
    """A file of the run could not be written; printed as one line, exit code 1."""


def unknown(kind: str, name: str, choices: Iterable[str], hint: str = "") -> ConfigError:
    """The error for an unknown name, with the closest valid one as a suggestion."""
    names = sorted(choices)
    by_lower = {choice.lower(): choice for choice in names}
    # Short names of different things are alike ("sac", "a2c"): a wrong guess is worse than none.
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    suggestion = f"did you mean '{by_lower[matches[0]]}'? " if matches else ""
    return ConfigError(f"unknown {kind} '{name}': {suggestion}choose from {', '.join(names)}{hint}")


def closest(name: str, choices: Iterable[str]) -> str | None:
    """What was probably meant: the choice with these initials (`lr`), with this word (`steps`), or a similar one."""
    names = sorted(choices)
    words = {choice: re.split("[-_]", choice) for choice in names}
    by_initials = [choice for choice in names if "".join(word[:1] for word in words[choice]) == name]
    by_word = [choice for choice in names if name in words[choice]]
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return next(iter([*by_initials, *by_word, *similar]), None)


def unknown_field(kind: str, name: str, fields: Iterable[str]) -> ConfigError:
    """The error for an unknown hyper-parameter, with the one that was probably meant."""
    names = sorted(fields)
    match = closest(name, names)
    suggestion = f"did you mean '{match}'? " if match else ""
    return ConfigError(f"unknown {kind} '{name}': {suggestion}choose from {', '.join(names)}")


def load_named(kind: str, path: str, fits: Callable[[Any], bool] = callable) -> Any:
    """The user's object at `module:Name`; ConfigError if there is none."""
    try:
        return loading.load(kind, path, fits)
    except UnusableError as error:
        raise ConfigError(str(error)) from error
