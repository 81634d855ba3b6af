"""The cluster engine's processes as subprocesses of this one."""

from collections.abc import Sequence
from pathlib import Path

from fragmenta.engines.launcher import SERVE
from fragmenta_launch.children import Children, Shown


class ProcessLauncher(Children):
    """Starts subprocesses; what they print goes to standard error, and to a file per process in `logs`."""

    address = "127.0.0.1"

    def __init__(self, logs: Path | None = None, serve: str = SERVE, names: Sequence[str] = ()) -> None:
        shown = Shown(logs, names)
        super().__init__(serve, shown, shown.hush)
