"""Actors, shards of a replay and a learner in separate fragments (Ape-X, R2D2)."""

from fragmenta.errors import ConfigError
from fragmenta.graph import Delivery, Fragment
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.required import acting, require

SHARD_STAGES = ("insert", "sample", "prioritize")
"""The stages of a shard; without priorities there is no `prioritize`."""


def replay(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Actors step; each shard of the replay keeps the steps of one actor and samples from them; one learner learns.

    Good for off-policy algorithms with a large replay: it has memory and devices of its own, and only batches cross.
    """
    return _split("replay", stages, cluster)


def replay_async(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Actors use the newest parameters, shards take their steps as they arrive, and the learner takes batches of any
    shard, without waiting (Ape-X).

    Good for environments of uneven speed. Results depend on timing; the lag is measured.
    """
    if cluster.max_lag is not None:
        problem = f"max_lag is {cluster.max_lag}, but distribution policy 'replay_async' learns from steps of any age"
        raise ConfigError(f"{problem}: leave it out")
    # Only priorities go back to the shards, each to the one that sent the batch.
    return _split(
        "replay_async",
        stages,
        cluster,
        (Delivery("learner", "latest"),),
        (Delivery("actor", "any"), Delivery("learner", "reply")),
        (Delivery("replay", "any"),),
    )


def _split(
    policy: str,
    stages: tuple[str, ...],
    cluster: Cluster,
    to_actor: tuple[Delivery, ...] = (),
    to_shard: tuple[Delivery, ...] = (),
    to_learner: tuple[Delivery, ...] = (),
) -> list[Fragment]:
    require(policy, ("insert", "sample"), stages, cluster)
    actor_stages = acting(policy, stages, cluster)
    shard_stages = tuple(stage for stage in stages if stage in SHARD_STAGES)
    learner_stages = tuple(stage for stage in stages if stage not in actor_stages + shard_stages)
    count = cluster.replicas
    # With too few devices for all, a shard is where its actor is: the most that crosses is what the actor collects.
    skip = 1 + count if len(cluster.devices) > 2 * count else 1
    shards = cluster.spread(count, skip=skip)
    if cluster.replay == "host":
        shards = cluster.in_host_memory(shards)
    return [
        Fragment("actor", actor_stages, cluster.spread(count, skip=1), count, "envs", to_actor),
        Fragment("replay", shard_stages, shards, count, "envs", to_shard),
        Fragment("learner", learner_stages, cluster.spread(1), delivery=to_learner),
    ]
