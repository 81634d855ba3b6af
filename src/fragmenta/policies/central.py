"""A parameter server: replicas compute gradients, a server applies them (A3C if asynchronous)."""

from fragmenta.graph import Delivery, Fragment
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.required import require


def central(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Replicas act, step and compute gradients; a server applies their mean and sends back parameters.

    Good for large observations and small networks: gradients and parameters cross, trajectories do not.
    """
    return _split("central", stages, cluster)


def central_async(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """A server applies gradients as they arrive; replicas use the newest parameters, without waiting (A3C).

    Good for replicas of uneven speed. Results depend on timing; the lag is measured and can be bounded.
    """
    latest = Delivery("server", "latest", max_lag=cluster.max_lag)
    return _split("central_async", stages, cluster, latest, Delivery("worker", "any"))


def _split(policy: str, stages: tuple[str, ...], cluster: Cluster, *deliveries: Delivery) -> list[Fragment]:
    require(policy, ("gradient", "apply"), stages, cluster)
    # If `gradient` and `apply` are nested in `learn`, it is not placed itself.
    learning = ("gradient", "apply", "learn") if {"gradient", "apply"} & set(cluster.nested) else ("gradient", "apply")
    worker_stages = (*(stage for stage in stages if stage not in learning), "gradient")
    replicas = cluster.replicas
    return [
        Fragment("worker", worker_stages, cluster.spread(replicas, skip=1), replicas, "envs", deliveries[:1]),
        Fragment("server", ("apply",), cluster.spread(1), delivery=deliveries[1:]),
    ]
