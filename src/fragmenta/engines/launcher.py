"""Starts the processes of a run; the engine's only interface to Ray or subprocesses."""

from typing import Protocol

SERVE = "fragmenta.engines.member:serve"
"""The entry point of a started process: `serve(coordinator, token, index, job)`, as module:function."""


class Launcher(Protocol):
    """Starts processes that connect back to the coordinator, and tracks how they end."""

    address: str
    """The address that the coordinator binds to and processes connect to."""

    def start(self, index: int, job: bytes, coordinator: tuple[str, int], token: bytes) -> None:
        """Start process `index` and return at once; the same index again replaces a lost process."""
        ...

    def ended(self, index: int) -> str | None:
        """How process `index` ended, as text; None while it starts or runs."""
        ...

    def kill(self, index: int) -> None:
        """Kill process `index` now, even if it is stopped."""
        ...

    def close(self) -> None:
        """Terminate all processes and everything else that was started."""
        ...
