"""Actors, shards of a replay and learners in separate fragments (Ape-X, R2D2)."""

from fragmenta.errors import ConfigError
from fragmenta.graph import Delivery, Fragment
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.required import acting, require

SHARD_STAGES = ("insert", "sample", "prioritize")
"""The stages of a shard; without priorities there is no `prioritize`."""


def replay(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Actors step; each shard of the replay keeps the steps of its environments and samples from them; learners learn.

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
    wrong = [("shards", cluster.shards, "one shard per actor")] * (cluster.shards not in (0, cluster.replicas))
    wrong += [("learners", cluster.learners, "one learner")] * (cluster.learners > 1)
    for option, count, needed in wrong:
        problem = f"{option} is {count}, but distribution policy 'replay_async' has {needed}"
        raise ConfigError(f"{problem}: leave it out, or use distribution policy 'replay'")
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
    actors, shards, learners = cluster.replicas, cluster.shards or cluster.replicas, cluster.learners
    # With too few devices for all, a shard is where an actor is: the most that crosses is what the actors collect.
    are_apart = len(cluster.devices) >= learners + actors + shards
    places = cluster.spread(shards, skip=learners + actors if are_apart else learners)
    if cluster.replay == "host":
        places = cluster.in_host_memory(places)
    return [
        Fragment("actor", actor_stages, cluster.spread(actors, skip=learners), actors, "envs", to_actor),
        Fragment("replay", shard_stages, places, shards, "envs", to_shard),
        Fragment("learner", learner_stages, cluster.one_each(learners, "learners"), learners, "envs", to_learner),
    ]
