"""Stage lookup for distribution policies that place stages by name, with errors for algorithms that lack them."""

from fragmenta.errors import ConfigError
from fragmenta.policies.cluster import Cluster


def acting(policy: str, stages: tuple[str, ...], cluster: Cluster) -> tuple[str, ...]:
    """The stages of the actor: `act` and `step`, or all stages in the loop of `step` if others remain for the learner.

    ConfigError lists the stages if neither is possible.
    """
    require(policy, ("step",), stages, cluster)
    if "act" in stages:
        return ("act", "step")
    if cluster.rollout and set(stages) - set(cluster.rollout):
        return cluster.rollout
    others = ", ".join(stage for stage in stages if stage != "step")
    raise ConfigError(
        f"distribution policy '{policy}' places stage 'act' with 'step', but this algorithm has no 'act': rename the "
        f"stage that chooses actions to 'act' (other stages: {others or 'none'}), or write your own distribution policy"
    )


def require(policy: str, required: tuple[str, ...], stages: tuple[str, ...], cluster: Cluster) -> None:
    """ConfigError unless the algorithm has these stages."""
    available = (*stages, *cluster.nested)
    missing = [name for name in required if name not in available]
    if missing:
        raise ConfigError(
            f"distribution policy '{policy}' places stages {' and '.join(map(repr, required))}, but this algorithm has "
            f"{', '.join(available)}: mark the function with @stage under that name, or choose a distribution policy "
            f"that needs no {missing[0]!r}, such as fused, multi_learner or single_learner_fine"
        )
