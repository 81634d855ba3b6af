"""Scheduling priority where there are fewer cores than threads."""

import os


def never_preempt() -> None:
    """Keep this thread, and threads that it starts, from preempting the one that woke it.

    A thread that sends requests to several processes in turn must not lose its core to the first of them: the others
    would wait for a whole step.
    """
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
