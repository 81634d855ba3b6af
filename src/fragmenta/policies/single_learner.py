"""One learner with replicated actors (Acme, IMPALA, RLlib) or replicated environments (SEED RL)."""

from fragmenta.errors import ConfigError
from fragmenta.graph import Delivery, Fragment
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.required import acting, require


def single_learner_coarse(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Actors act and step locally; one trajectory per actor and iteration goes to the learner.

    Good for many environments and small networks: parameters and trajectories cross once per iteration.
    """
    actor_stages = acting("single_learner_coarse", stages, cluster)
    return _split(stages, cluster, "actor", actor_stages, Delivery("learner", lag=cluster.lag))


def single_learner_fine(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Replicas step environments and the learner acts; observations and actions cross at every step.

    Good for large networks and hosts without accelerators: no parameters cross, and acting uses the learner's device.
    """
    require("single_learner_fine", ("step",), stages, cluster)
    return _split(stages, cluster, "env", ("step",), Delivery("learner"))


def single_learner_async(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Actors use the newest parameters, and the learner takes trajectories as they arrive, without waiting (IMPALA).

    Good for environments of uneven speed. Results depend on timing; the lag is measured and can be bounded.
    """
    actor_stages = acting("single_learner_async", stages, cluster)
    if not set(stages) - set(actor_stages):
        raise ConfigError(
            f"distribution policy 'single_learner_async' needs a stage for the learner, but this algorithm has none "
            f"besides {' and '.join(actor_stages)}: mark the function that learns with @stage, or use fused"
        )
    latest = Delivery("learner", "latest", max_lag=cluster.max_lag)
    return _split(stages, cluster, "actor", actor_stages, latest, Delivery("actor", "any"))


def _split(
    stages: tuple[str, ...], cluster: Cluster, name: str, replicated_stages: tuple[str, ...], *deliveries: Delivery
) -> list[Fragment]:
    learner_stages = tuple(stage for stage in stages if stage not in replicated_stages)
    replicas = cluster.replicas
    return [
        Fragment(name, replicated_stages, cluster.spread(replicas, skip=1), replicas, "envs", deliveries[:1]),
        Fragment("learner", learner_stages, cluster.spread(1), delivery=deliveries[1:]),
    ]
