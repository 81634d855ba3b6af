"""Faults of environments, each as one line that says where it happened."""

import dataclasses
import difflib
import os
import signal
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STEPPING = tuple(
    f"{Path(__file__).parent.parent / package}{os.sep}" for package in ("fragmenta_core", "fragmenta_host")
)
"""Where the code is that calls environments: of no interest to whoever wrote one."""
CALLING = "unexpected keyword argument", "positional argument"
"""Errors of a call with other arguments than the method takes, which never enters the method."""

OVERDUE = signal.SIGALRM
"""Ends a process whose environment does not finish its step: one that holds the interpreter leaves no other way, and
how a process ended is what the process that started it gets to know."""


class UnusableError(ValueError):
    """The requested environment cannot be used: a wrong name, a missing package, an unsupported space."""


def unknown(kind: str, name: str, names: Iterable[str]) -> UnusableError:
    """The error for an unknown name, with the closest valid ones; for lists too long to print."""
    matches = difflib.get_close_matches(name, list(names), n=3, cutoff=0.4)
    suggestion = f": did you mean '{matches[0]}'? " if matches else ""
    others = f"similar names: {', '.join(matches)}" if len(matches) > 1 else ""
    return UnusableError(f"unknown {kind} '{name}'{suggestion}{others}".strip())


@dataclasses.dataclass(frozen=True)
class Fault:
    """One environment's failure: its index, what happened, and the traceback if its code raised."""

    index: int
    what: str
    trace: str = ""
    lost: tuple[int, ...] = ()
    """Other environments lost with it, because their process ended."""

    @property
    def rows(self) -> list[int]:
        """All environments that must be restarted."""
        return [self.index, *self.lost]

    def to_json(self) -> dict[str, Any]:
        """Convert to a dictionary, to send to another process."""
        return dataclasses.asdict(self)


class EnvironmentFaultError(RuntimeError):
    """A fault that ended the run: environment, step, what went wrong, and the environment's own traceback."""

    def __init__(self, name: str, fault: Fault, step: int, hint: str) -> None:
        super().__init__(f"environment {fault.index} of {name}, step {step}: {fault.what}{hint}")
        self.trace, self.hint = fault.trace, hint

    @staticmethod
    def from_message(message: str, trace: str) -> "EnvironmentFaultError":
        """An error reported by another process, with its complete message."""
        error = EnvironmentFaultError.__new__(EnvironmentFaultError)
        RuntimeError.__init__(error, message)
        error.trace, error.hint = trace, ""
        return error


class WrongValueError(ValueError):
    """An environment returned a value that does not match its spaces."""


def fault_from(index: int, where: str, error: BaseException) -> Fault:
    """The fault of an environment whose code raised, or returned a wrong value."""
    if isinstance(error, WrongValueError):
        return Fault(index, f"{where} {error}")
    return Fault(index, f"{where} raised {type(error).__name__}: {error}".splitlines()[0], _trace(error))


def _trace(error: BaseException) -> str:
    """The traceback from where it enters the environment's code; empty if it was called with wrong arguments."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(STEPPING):
        entry = entry.tb_next
    if entry is None and isinstance(error, TypeError) and any(text in str(error) for text in CALLING):
        return ""
    return "".join(traceback.format_exception(type(error), error, entry or error.__traceback__))
