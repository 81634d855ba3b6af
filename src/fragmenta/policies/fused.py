"""The whole loop on every device: as one compiled program, or with a learner in every replica."""

from fragmenta.errors import ConfigError
from fragmenta.graph import Fragment
from fragmenta.policies.cluster import Cluster


def fused(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Every stage in one compiled program, replicated over devices, several iterations per call.

    Good for JAX environments on any number of devices: only what replicas must agree on crosses, such as gradients.
    """
    if cluster.host:
        raise ConfigError(
            f"distribution policy 'fused' is one compiled program, but '{cluster.host[0]}' of this environment runs on "
            f"the host: use single_learner_coarse, single_learner_fine or multi_learner"
        )
    replicas = cluster.replicas
    return [Fragment("all", stages, cluster.spread(replicas), replicas, axis="envs")]


def multi_learner(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Every replica acts, steps and learns on its own device; gradients are averaged among replicas.

    Good for large networks and batches, where learning dominates, and for environments on the host.
    """
    replicas = cluster.replicas
    return [Fragment("learner", stages, cluster.one_each(replicas), replicas, axis="envs")]
