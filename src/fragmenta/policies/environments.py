"""Environments on workers of their own, agents on others (MALib; MAPPO in the paper)."""

from fragmenta.graph import Fragment
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.wanted import require


def environments(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Environments step on their own workers; acting and learning are replicated along the agents.

    Good for many agents with networks of their own. With one agent it is single_learner_fine.
    """
    require("environments", ("step",), stages, cluster)
    rest = tuple(stage for stage in stages if stage != "step")
    replicas, learners = cluster.replicas, min(cluster.replicas, cluster.agents)
    return [
        Fragment("env", ("step",), cluster.spread(replicas), replicas, axis="envs"),
        Fragment("agents", rest, cluster.spread(learners), learners, axis="agents"),
    ]
