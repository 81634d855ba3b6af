"""Errors of other processes, and how they are raised in the user's process."""

from fragmenta.engines.control import FailedError, LostError
from fragmenta.errors import ConfigError
from fragmenta.worker.execute import DeadlineError
from fragmenta_core.faults import EnvironmentFaultError
from fragmenta_launch.children import TOOK_TOO_LONG


class RemoteError(RuntimeError):
    """An error of a fragment in another process; `trace` is its traceback there."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


def is_permanent(failure: LostError | FailedError) -> bool:
    """Whether a new process would fail the same way: a user's mistake, or an error with a budget of its own."""
    if isinstance(failure, LostError):
        return str(failure).endswith(TOOK_TOO_LONG)
    kinds = ("ConfigError", "UnusableError", "EnvironmentFaultError")
    return failure.kind in kinds


def user_error(error: BaseException) -> BaseException:
    """The error to raise in the user's process for an error of another process."""
    if isinstance(error, LostError):
        return RemoteError(str(error))
    if not isinstance(error, FailedError):
        return error
    if error.kind == "EnvironmentFaultError":
        return EnvironmentFaultError.from_message(str(error), error.trace)
    if error.kind in ("ConfigError", "UnusableError"):
        return ConfigError(str(error))
    if error.kind == "DeadlineError":
        return DeadlineError(str(error))
    return RemoteError(f"{error.kind} in {error.worker}: {error}", error.trace)
