"""One process at a time writes a run directory."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from fragmenta.errors import ConfigError

LOCK = ".lock"
"""The locked file within a run directory; says who holds the lock."""


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the lock of a run directory; ConfigError if another process does. The lock ends with its process, however
    that ends, and processes that it starts do not inherit it."""
    try:
        file = (run / LOCK).open("a+")
    except OSError as error:
        raise ConfigError(f"cannot write to run directory '{run}': {error.strerror}") from None
    with file:
        if not _acquired(file.fileno()):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ConfigError(f"run directory '{run}' is being written by {holder}: end that first, or wait for it")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def is_locked(run: Path) -> bool:
    """Whether another process holds the lock of a run directory."""
    try:
        file = (run / LOCK).open("r+")
    except OSError:
        return False
    with file:
        return not _acquired(file.fileno())


def _acquired(descriptor: int) -> bool:
    """Take the lock; False if another process has it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True
