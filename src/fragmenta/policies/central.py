"""A parameter server: workers compute gradients, one fragment applies them (A3C when nobody waits)."""

from fragmenta.graph import Delivery, Fragment
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.wanted import require


def central(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Workers act, step and compute gradients; a server applies their mean and hands out parameters.

    Good for large observations and small networks: gradients and parameters cross, trajectories never do.
    """
    return _split("central", stages, cluster)


def central_async(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """A server applies each worker's gradient as it comes, and workers use the newest parameters; nobody waits (A3C).

    Good for workers of uneven speed. The result depends on who is faster; the lag is measured and can be bounded.
    """
    latest = Delivery("server", "latest", max_lag=cluster.max_lag)
    return _split("central_async", stages, cluster, latest, Delivery("worker", "any"))


def _split(policy: str, stages: tuple[str, ...], cluster: Cluster, *deliveries: Delivery) -> list[Fragment]:
    require(policy, ("gradient", "apply"), stages, cluster)
    # Where `gradient` and `apply` are nested in `learn`, that is not placed itself.
    learning = ("gradient", "apply", "learn") if {"gradient", "apply"} & set(cluster.nested) else ("gradient", "apply")
    theirs = (*(stage for stage in stages if stage not in learning), "gradient")
    replicas = cluster.replicas
    return [
        Fragment("worker", theirs, cluster.spread(replicas, skip=1), replicas, "envs", deliveries[:1]),
        Fragment("server", ("apply",), cluster.spread(1), delivery=deliveries[1:]),
    ]
