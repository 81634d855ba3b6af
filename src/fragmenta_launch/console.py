"""The command `fragmenta`. Loading it takes seconds, in which Ctrl-C must end it as it does later: with one line."""

import os
import signal
import sys
from importlib import import_module
from types import FrameType


def main() -> int:
    """Load the command line and run it."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where it is ignored, as in the background
        signal.signal(signal.SIGINT, _end)
    command_line = import_module("fragmenta.cli.main")
    signal.signal(signal.SIGINT, handler)
    return command_line.main()


def _end(number: int, _frame: FrameType | None) -> None:
    # No exception: C code that is importing a module would replace it by its own.
    print("fragmenta: interrupted", file=sys.stderr, flush=True)
    os._exit(128 + number)
