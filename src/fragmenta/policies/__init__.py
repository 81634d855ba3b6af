"""Distribution policies by name: functions that place stages on devices."""

from collections.abc import Callable, Sequence
from typing import cast

from fragmenta.errors import ConfigError, load_named, unknown
from fragmenta.graph import Delivery, Fragment
from fragmenta.policies.central import central, central_async
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.environments import environments
from fragmenta.policies.fused import fused, multi_learner
from fragmenta.policies.replay import replay, replay_async
from fragmenta.policies.single_learner import single_learner_async, single_learner_coarse, single_learner_fine

Policy = Callable[[tuple[str, ...], Cluster], Sequence[Fragment]]
"""Takes the names of the stages and the cluster, returns the fragments."""

POLICIES: dict[str, Policy] = {
    "fused": fused,
    "single_learner_coarse": single_learner_coarse,
    "single_learner_fine": single_learner_fine,
    "multi_learner": multi_learner,
    "central": central,
    "environments": environments,
    "replay": replay,
    "single_learner_async": single_learner_async,
    "central_async": central_async,
    "replay_async": replay_async,
}
ALIASES = {"gpu_only": "fused"}
WITH_ACTORS = (single_learner_coarse, single_learner_fine, single_learner_async, replay, replay_async)
"""Those whose replicas step environments apart from the learner, so that one can step while another acts."""


def resolve(policy: str | Policy) -> Policy:
    """The distribution policy given by name, by `module:function`, or as a function."""
    if callable(policy):
        return policy
    name = ALIASES.get(policy, policy)
    if name in POLICIES:
        return POLICIES[name]
    if ":" not in name:
        raise unknown("distribution policy", policy, [*POLICIES, *ALIASES], ", or module:function for your own")
    function = load_named("distribution policy", name)
    if not callable(function):
        kind = type(function).__name__
        raise ConfigError(f"distribution policy '{policy}' is {kind}, not a function (stages, cluster) -> fragments")
    return cast(Policy, function)


__all__ = ["ALIASES", "POLICIES", "WITH_ACTORS", "Cluster", "Delivery", "Fragment", "Policy", "resolve"]
