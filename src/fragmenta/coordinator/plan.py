"""From a graph and a policy to a plan: the passes in order."""

from fragmenta.coordinator.merge import merge as merge_fragments
from fragmenta.coordinator.place import place
from fragmenta.coordinator.project import project as project_placement
from fragmenta.errors import ConfigError
from fragmenta.graph import Fragment, Graph, Plan
from fragmenta.policies import Cluster, Policy, resolve


def project(graph: Graph, policy: str | Policy, cluster: Cluster, merge: bool = True) -> Plan:
    """Apply a policy to a graph: one program per fragment, fragments and replicas that share a device merged."""
    if cluster.replicas < 1:
        raise ConfigError(f"replicas is {cluster.replicas}: it must be at least 1")
    function = resolve(policy)
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", "policy")
    fragments = list(function(graph.top_stages, cluster))
    wrong = [item for item in fragments if not isinstance(item, Fragment)]
    if wrong or not fragments:
        raise ConfigError(f"policy '{name}' must return a list of Fragment, got {wrong or fragments}")
    placement = place(graph, fragments, cluster)
    if merge:
        placement = place(graph, merge_fragments(placement.fragments), cluster)
    return project_placement(placement, name)
