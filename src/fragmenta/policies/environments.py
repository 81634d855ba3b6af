"""Environments and agents in separate fragments (MALib; MAPPO in the paper)."""

from fragmenta.graph import Fragment
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.required import require


def environments(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Environments step in their own fragment; acting and learning are replicated along the agents.

    Good for many agents with separate networks. With one agent it is single_learner_fine.
    """
    require("environments", ("step",), stages, cluster)
    agent_stages = tuple(stage for stage in stages if stage != "step")
    replicas, learners = cluster.replicas, min(cluster.replicas, cluster.agents)
    return [
        Fragment("env", ("step",), cluster.spread(replicas), replicas, axis="envs"),
        Fragment("agents", agent_stages, cluster.spread(learners), learners, axis="agents"),
    ]
