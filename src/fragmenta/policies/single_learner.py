"""One learner, fed by replicas (Acme, IMPALA and RLlib act apart from it; SEED RL acts in it)."""

from fragmenta.errors import ConfigError
from fragmenta.graph import Delivery, Fragment
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.wanted import acting, require


def single_learner_coarse(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Actors step their environments on their own; one trajectory per iteration goes to the learner.

    Good for many environments and small policies: parameters and trajectories cross once per iteration.
    """
    theirs = acting("single_learner_coarse", stages, cluster)
    return _split(stages, cluster, "actor", theirs, Delivery("learner", lag=cluster.lag))


def single_learner_fine(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Environments apart from the learner, which also acts; observations and actions cross at every step.

    Good for large policies and environments on plain hosts: no parameters cross, and acting uses the learner's device.
    """
    require("single_learner_fine", ("step",), stages, cluster)
    return _split(stages, cluster, "env", ("step",), Delivery("learner"))


def single_learner_async(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Actors use the newest parameters, and the learner takes trajectories as they come; nobody waits (IMPALA).

    Good for environments of uneven speed. The result depends on who is faster; the lag is measured and can be bounded.
    """
    theirs = acting("single_learner_async", stages, cluster)
    if not set(stages) - set(theirs):
        raise ConfigError(
            f"policy 'single_learner_async' has a learner for what actors bring, but this algorithm has no stage "
            f"besides {' and '.join(theirs)}: mark what learns with @stage, or use fused"
        )
    latest = Delivery("learner", "latest", max_lag=cluster.max_lag)
    return _split(stages, cluster, "actor", theirs, latest, Delivery("actor", "any"))


def _split(
    stages: tuple[str, ...], cluster: Cluster, name: str, theirs: tuple[str, ...], *deliveries: Delivery
) -> list[Fragment]:
    rest = tuple(stage for stage in stages if stage not in theirs)
    replicas = cluster.replicas
    return [
        Fragment(name, theirs, cluster.spread(replicas, skip=1), replicas, "envs", deliveries[:1]),
        Fragment("learner", rest, cluster.spread(1), delivery=deliveries[1:]),
    ]
