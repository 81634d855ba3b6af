"""Chooses another plan for a run that is slower than predicted."""

import dataclasses
import time

from fragmenta.planner.auto import Decision, faster
from fragmenta.training.planning import PlannedRun, plan_run, question_of

PATIENCE_SECONDS = 30.0
"""After plans were compared in vain, they are compared again after this time, then after twice of it, and so on."""


class Rechoosing:
    """Compares plans again while a run is slower than predicted, under whatever slows it down."""

    def __init__(self) -> None:
        self._patience, self._not_before = PATIENCE_SECONDS, 0.0

    def __call__(self, run: PlannedRun, measured: float) -> PlannedRun | None:
        """The same request under a plan that is faster by now, with its prediction, or None."""
        if time.monotonic() < self._not_before:
            return None
        current = Decision(run.policy, run.engine, run.cluster, merge=run.request.options.merge)
        decision = faster(question_of(run), current)
        self._not_before = time.monotonic() + self._patience
        self._patience *= 2
        if decision is None:
            return None
        return dataclasses.replace(plan_run(run.request, decision), engine_is_open=run.engine_is_open)
