"""Starts the cluster engine's processes as subprocesses."""

from collections.abc import Sequence
from pathlib import Path

from fragmenta.engines.launcher import SERVE
from fragmenta_launch.children import Children, OutputPrinter


class ProcessLauncher(Children):
    """Starts subprocesses; their output goes to standard error, and to a file per process in `logs`."""

    address = "127.0.0.1"

    def __init__(self, logs: Path | None = None, serve: str = SERVE, names: Sequence[str] = ()) -> None:
        output = OutputPrinter(logs, names)
        super().__init__(serve, output, output.hush)
