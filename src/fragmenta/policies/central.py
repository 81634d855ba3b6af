"""A parameter server: workers compute gradients, one fragment applies them (A3C when nobody waits)."""

from fragmenta.graph import Delivery, Fragment
from fragmenta.policies.cluster import Cluster


def central(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Workers act, step and compute gradients; a server applies their mean and hands out parameters.

    Good for large observations and small networks: gradients and parameters cross, trajectories never do.
    """
    return _split(stages, cluster)


def central_async(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """A server applies each worker's gradient as it comes, and workers use the newest parameters; nobody waits (A3C).

    Good for workers of uneven speed. The result depends on who is faster; the lag is measured and can be bounded.
    """
    latest = Delivery("server", "latest", max_lag=cluster.max_lag)
    return _split(stages, cluster, latest, Delivery("worker", "any"))


def _split(stages: tuple[str, ...], cluster: Cluster, *deliveries: Delivery) -> list[Fragment]:
    # `gradient` and `apply` are nested in `learn`, which is not placed itself.
    others = tuple(stage for stage in stages if stage not in ("act", "step", "learn"))
    replicas = cluster.replicas
    theirs = ("act", "step", *others, "gradient")
    return [
        Fragment("worker", theirs, cluster.spread(replicas, skip=1), replicas, "envs", deliveries[:1]),
        Fragment("server", ("apply",), cluster.spread(1), delivery=deliveries[1:]),
    ]
