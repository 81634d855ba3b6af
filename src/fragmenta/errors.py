"""Errors that tell a user what to change, in one line, before anything runs."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A mistake in what the user asked for: shown as one line, exit code 2."""


class StorageError(OSError):
    """What a run must keep could not be written: shown as one line, exit code 1."""


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> ConfigError:
    """The error for a name that is not among the known ones, with the nearest that is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    suggestion = f"did you mean '{near[0]}'? " if near else ""
    return ConfigError(f"unknown {kind} '{name}': {suggestion}known are {', '.join(names)}{hint}")
