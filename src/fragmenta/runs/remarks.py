"""Remarks that a long output must not bury: printed at once, and by the command line again at its end."""

import sys

_made: list[str] = []


def remark(line: str) -> None:
    """Print a line on standard error now, and keep it for the end of the command."""
    print(f"fragmenta: {line}", file=sys.stderr, flush=True)
    if line not in _made:
        _made.append(line)


def made_so_far() -> list[str]:
    """The remarks since the last call, each once."""
    lines = _made.copy()
    _made.clear()
    return lines
