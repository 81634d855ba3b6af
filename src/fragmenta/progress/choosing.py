"""Choose how to show the progress of a run: live in a terminal or a notebook, or as plain lines."""

import sys
from pathlib import Path
from typing import Any, Protocol, TextIO

from fragmenta.progress.notebook import NotebookView
from fragmenta.progress.terminal import PlainView, TerminalView
from fragmenta.progress.watching import Watcher


class ProgressView(Watcher, Protocol):
    """Shows the progress of one run, and its end."""

    def close(self) -> None:
        """Stop showing it: the run has ended or failed."""
        ...

    def finished(self, summary: dict[str, Any], run_dir: Path | None) -> None:
        """Show the summary."""
        ...


def view_for(output: TextIO) -> ProgressView:
    """A curve if this is a notebook, a live view if the output is a terminal, otherwise plain lines."""
    if in_notebook():
        return NotebookView()
    return TerminalView(output) if output.isatty() else PlainView(output)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which can display more than text."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
