"""Where the processes of a run come from: the engine knows this and nothing else of Ray or of subprocesses."""

from typing import Protocol

SERVE = "fragmenta.engines.member:serve"
"""What a started process runs: `serve(coordinator, token, index, job)`, written as module:function."""


class Launcher(Protocol):
    """Starts processes that connect back to the coordinator, and knows what becomes of them."""

    address: str
    """What processes use to reach the coordinator, which binds to it."""

    def start(self, index: int, job: bytes, coordinator: tuple[str, int], token: bytes) -> None:
        """Start process `index` and return at once; the same index again replaces one that was lost."""
        ...

    def ended(self, index: int) -> str | None:
        """In words how process `index` ended, or None while it starts or runs."""
        ...

    def kill(self, index: int) -> None:
        """End process `index` now, even if it is stopped."""
        ...

    def close(self) -> None:
        """End all processes and everything else that was started."""
        ...
