"""How host environments are stepped, as the user asks for it."""

import dataclasses
import os

from fragmenta_core.faults import UnusableError

MODES = ("auto", "serial", "threads", "processes")


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """How environments are stepped."""

    mode: str = "auto"
    workers: int | None = None
    """Processes or threads; by default one per core available to this process."""
    restarts: int = 0
    """How many faults are handled by restarting environments."""
    timeout: float = 60.0
    """Seconds that one request to an environment process may take, mainly a step."""


def check(options: PoolOptions) -> None:
    """Reject invalid options."""
    if options.mode not in MODES:
        raise UnusableError(f"env_mode is '{options.mode}': choose one of {', '.join(MODES)}")
    for name, least in (("workers", 1), ("restarts", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UnusableError(f"env_{name} is {value}: it must be at least {least}")
    if not options.timeout > 0:  # NaN is not
        raise UnusableError(f"env_timeout is {options.timeout}: it must be more than 0 seconds")


def cores() -> int:
    """Number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
