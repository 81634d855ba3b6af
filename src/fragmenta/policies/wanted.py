"""What policies that place stages by name do about algorithms that have others."""

from fragmenta.errors import ConfigError
from fragmenta.policies.cluster import Cluster


def acting(policy: str, stages: tuple[str, ...], cluster: Cluster) -> tuple[str, ...]:
    """The stages that act and step: those of these names, or all in the loop that steps if something is left to learn.

    ConfigError says which stages there are, if none of that is possible.
    """
    require(policy, ("step",), stages, cluster)
    if "act" in stages:
        return ("act", "step")
    if cluster.rollout and set(stages) - set(cluster.rollout):
        return cluster.rollout
    others = ", ".join(stage for stage in stages if stage != "step")
    raise ConfigError(
        f"policy '{policy}' puts a stage 'act' next to 'step', and this algorithm has none: name the stage that "
        f"chooses actions 'act' (there are {others or 'no others'}), or place stages by a policy of your own"
    )


def require(policy: str, wanted: tuple[str, ...], stages: tuple[str, ...], cluster: Cluster) -> None:
    """ConfigError unless the algorithm has these stages."""
    there = (*stages, *cluster.nested)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise ConfigError(
            f"policy '{policy}' places stages {' and '.join(map(repr, wanted))}, but this algorithm has "
            f"{', '.join(there)}: mark what does that with @stage under that name, or choose a policy that needs no "
            f"{missing[0]!r}, such as fused, multi_learner or single_learner_fine"
        )
