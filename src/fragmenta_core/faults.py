"""What can go wrong with an environment, in one line that says where."""

import dataclasses
import difflib
import traceback
from collections.abc import Iterable
from typing import Any


class UnusableError(ValueError):
    """The environment that was asked for cannot be had: a wrong name, a missing package, an unknown kind of space."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UnusableError:
    """The error for a name that is not among many known ones, with the nearest that are."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    suggestion = f": did you mean '{near[0]}'? " if near else ""
    others = f"near are {', '.join(near)}" if len(near) > 1 else ""
    return UnusableError(f"unknown {kind} '{name}'{suggestion}{others}".strip())


@dataclasses.dataclass(frozen=True)
class Fault:
    """One environment's failure: its global index, what happened, and the traceback of its own code if it raised."""

    index: int
    what: str
    trace: str = ""
    lost: tuple[int, ...] = ()
    """The other environments that were lost with it, because their process ended."""

    @property
    def rows(self) -> list[int]:
        """All environments that must start anew."""
        return [self.index, *self.lost]

    def to_json(self) -> dict[str, Any]:
        """As a dictionary, to hand it to another process."""
        return dataclasses.asdict(self)


class EnvironmentFaultError(RuntimeError):
    """A fault that ended the run: environment, step, expected and got, with the environment's own traceback."""

    def __init__(self, name: str, fault: Fault, step: int, hint: str) -> None:
        super().__init__(f"environment {fault.index} of {name}, step {step}: {fault.what}{hint}")
        self.trace = fault.trace

    @staticmethod
    def told(message: str, trace: str) -> "EnvironmentFaultError":
        """One that another process tells of, whose message is whole already."""
        error = EnvironmentFaultError.__new__(EnvironmentFaultError)
        RuntimeError.__init__(error, message)
        error.trace = trace
        return error


class WrongValueError(ValueError):
    """An environment returned what its spaces do not allow."""


def raised(index: int, where: str, error: BaseException) -> Fault:
    """The fault of an environment whose code raised, or returned something wrong."""
    if isinstance(error, WrongValueError):
        return Fault(index, f"{where} {error}")
    text = "".join(traceback.format_exception(error))
    return Fault(index, f"{where} raised {type(error).__name__}: {error}".splitlines()[0], text)
