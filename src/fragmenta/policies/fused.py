"""The whole loop as one program (the paper's DP-GPUOnly; Anakin, PureJaxRL)."""

from fragmenta.graph import Fragment
from fragmenta.policies.cluster import Cluster


def fused(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Every stage in one compiled program, replicated over devices. Fastest where the environment is JAX."""
    replicas = cluster.replicas
    return [Fragment("all", stages, cluster.spread(replicas), replicas, axis="envs")]
