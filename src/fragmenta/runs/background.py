"""Background work must not slow down training."""

import os
import sys

NICENESS = 10


def lower_priority() -> None:
    """Let the calling thread, and threads that it starts, run only on cores that training leaves idle."""
    if sys.platform == "linux":  # elsewhere this would affect the whole process
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
