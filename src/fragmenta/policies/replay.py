"""Actors, shards of a replay and a learner in separate fragments (Ape-X, R2D2)."""

from fragmenta.graph import Fragment
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.required import acting, require

SHARD_STAGES = ("insert", "sample", "prioritize")
"""The stages of a shard; without priorities there is no `prioritize`."""


def replay(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Actors step; each shard of the replay keeps the steps of one actor and samples from them; one learner learns.

    Good for off-policy algorithms with a large replay: it has memory and devices of its own, and only batches cross.
    """
    require("replay", ("insert", "sample"), stages, cluster)
    actor_stages = acting("replay", stages, cluster)
    shard_stages = tuple(stage for stage in stages if stage in SHARD_STAGES)
    learner_stages = tuple(stage for stage in stages if stage not in actor_stages + shard_stages)
    count = cluster.replicas
    # With too few devices for all, a shard is where its actor is: the most that crosses is what the actor collects.
    skip = 1 + count if len(cluster.devices) > 2 * count else 1
    return [
        Fragment("actor", actor_stages, cluster.spread(count, skip=1), count, "envs"),
        Fragment("replay", shard_stages, cluster.spread(count, skip=skip), count, "envs"),
        Fragment("learner", learner_stages, cluster.spread(1)),
    ]
