"""Where each stage runs: distribution policies by name."""

import importlib
from collections.abc import Callable, Sequence
from typing import cast

from fragmenta.errors import ConfigError, unknown
from fragmenta.graph import Delivery, Fragment
from fragmenta.policies.central import central, central_async
from fragmenta.policies.cluster import Cluster
from fragmenta.policies.environments import environments
from fragmenta.policies.fused import fused, multi_learner
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
    "single_learner_async": single_learner_async,
    "central_async": central_async,
}
ALIASES = {"gpu_only": "fused"}


def resolve(policy: str | Policy) -> Policy:
    """The policy of that name, of that `module:function`, or the function itself."""
    if callable(policy):
        return policy
    name = ALIASES.get(policy, policy)
    if name in POLICIES:
        return POLICIES[name]
    if ":" not in name:
        raise unknown("policy", policy, [*POLICIES, *ALIASES], ", or module:function for one of your own")
    module_name, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load policy '{policy}': {error}") from error
    if not callable(found):
        raise ConfigError(f"policy '{policy}' is {type(found).__name__}, not a function (stages, cluster) -> fragments")
    return cast(Policy, found)


__all__ = ["ALIASES", "POLICIES", "Cluster", "Delivery", "Fragment", "Policy", "resolve"]
