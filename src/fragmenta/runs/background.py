"""What goes on besides training must not slow it."""

import os
import sys

NICENESS = 10


def lower_priority() -> None:
    """Let the calling thread, and threads that it starts, compute only where training leaves a core idle."""
    if sys.platform == "linux":  # elsewhere this would concern the whole process
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
