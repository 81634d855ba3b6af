"""The whole loop on every device: as one program, or with a learner next to every environment."""

from fragmenta.graph import Fragment
from fragmenta.policies.cluster import Cluster


def fused(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Every stage in one compiled program, replicated over devices, several iterations per launch.

    Good for environments in JAX, on any number of devices: nothing crosses but what replicas must agree on.
    """
    replicas = cluster.replicas
    return [Fragment("all", stages, cluster.spread(replicas), replicas, axis="envs")]


def multi_learner(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Every replica acts, steps and learns on a device of its own; gradients are averaged among them.

    Good for large networks and batches, where learning is what takes the time, and for environments on hosts.
    """
    replicas = cluster.replicas
    return [Fragment("learner", stages, cluster.one_each(replicas), replicas, axis="envs")]
