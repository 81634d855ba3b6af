"""Who goes first where there are fewer cores than there is work."""

import os


def never_preempt() -> None:
    """Let this thread, and threads that it starts, never interrupt the one that woke it.

    Whoever hands out work to several workers, one after the other, must not lose its core to the first of them: the
    others would wait for a whole step.
    """
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
