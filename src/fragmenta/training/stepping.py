"""How a run steps its environments: decided before it starts, and reported in the line `environments:`."""

import contextlib
from collections.abc import Iterator

from fragmenta.training.planning import PlannedRun


@contextlib.contextmanager
def settled(run: PlannedRun) -> Iterator[str]:
    """Decide how the environments are stepped, which may need a measurement, and yield the line that reports it.

    Processes started for it serve the run, and end with this context. Those of an engine decide for themselves.
    """
    request, pool = run.request, run.request.env.host_pool
    if pool is None or run.cluster.apart:
        yield _line(run)
        return
    try:
        pool.settle(request.algorithm.num_envs, run.plan.lanes)
        yield _line(run)
    finally:
        pool.close()


def _line(run: PlannedRun) -> str:
    request, count = run.request, run.request.algorithm.num_envs
    how = request.env.where(count, run.plan.lanes)
    if run.cluster.apart and request.env.host_pool:
        how = "on the host, in the processes that step them"
    parts = [f"{count} of {request.env_name}", how, run.why_replicas]
    return ", ".join(filter(None, parts))
