"""One learner, fed by replicas (Acme, IMPALA and RLlib act apart from it; SEED RL acts in it)."""

from fragmenta.graph import Fragment
from fragmenta.policies.cluster import Cluster


def single_learner_coarse(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Actors step their environments on their own; one trajectory per iteration goes to the learner."""
    return _split(stages, cluster, "actor", ("act", "step"))


def single_learner_fine(stages: tuple[str, ...], cluster: Cluster) -> list[Fragment]:
    """Environments apart from the learner, which also acts; observations and actions cross at every step."""
    return _split(stages, cluster, "env", ("step",))


def _split(stages: tuple[str, ...], cluster: Cluster, name: str, theirs: tuple[str, ...]) -> list[Fragment]:
    rest = tuple(stage for stage in stages if stage not in theirs)
    replicas = cluster.replicas
    return [
        Fragment(name, theirs, cluster.spread(replicas, skip=1), replicas, axis="envs"),
        Fragment("learner", rest, cluster.spread(1)),
    ]
