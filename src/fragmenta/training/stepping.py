"""How a run steps its environments: decided before it starts, and said in the line `environments:`."""

import contextlib
from collections.abc import Iterator

from fragmenta.engines.in_flight import fits
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.training.planning import PlannedRun


@contextlib.contextmanager
def settled(run: PlannedRun, checkpoint: Checkpoint | None) -> Iterator[str]:
    """Decide how the environments are stepped, which may need a measurement, and yield the line that says so.

    Processes started for it serve the run, and end with this context. Those of an engine decide for themselves.
    """
    request, pool = run.request, run.request.env.host_pool
    if pool is None or run.cluster.apart:
        yield _line(run, checkpoint)
        return
    try:
        pool.settle(request.algorithm.num_envs, run.plan.lanes)
        yield _line(run, checkpoint)
    finally:
        pool.close()


def _line(run: PlannedRun, checkpoint: Checkpoint | None) -> str:
    request, count = run.request, run.request.algorithm.num_envs
    how = request.env.where(count, run.plan.lanes)
    if run.cluster.apart and request.env.host_pool:
        how = "on the host, in the processes that step them"
    parts = [f"{count} of {request.env_name}", how, run.why_replicas]
    return ", ".join(filter(None, parts)) + _resumed(run, checkpoint)


def _resumed(run: PlannedRun, checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return ""
    anew = ", which start new episodes because their state cannot be saved" if not run.request.env.is_replayable else ""
    dropped = checkpoint.in_flight and not fits(run.plan, checkpoint.in_flight)
    without = ", without the values in flight: this plan does not use them" if dropped else ""
    return f"{anew}; resumed after {checkpoint.steps:,} steps{without}"
