"""From a graph and a distribution policy to a plan: the passes in order."""

import dataclasses
from collections.abc import Iterable, Sequence

from fragmenta.coordinator.merge import merge as merge_fragments
from fragmenta.coordinator.place import place
from fragmenta.coordinator.project import project_placement
from fragmenta.errors import ConfigError
from fragmenta.graph import Fragment, Graph, Plan
from fragmenta.graph.check import check_plan
from fragmenta.policies import Cluster, Policy, resolve

_OVERLAPS = "single_learner_coarse"


def project(graph: Graph, policy: str | Policy, cluster: Cluster, merge: bool = True) -> Plan:
    """Apply a distribution policy to a graph: one program per fragment, merging what shares a device if `merge`."""
    if cluster.replicas < 1:
        raise ConfigError(f"replicas is {cluster.replicas}: it must be at least 1")
    if cluster.lag not in (0, 1):
        raise ConfigError(f"lag is {cluster.lag}: choose 0 or 1")
    if cluster.max_lag is not None and cluster.max_lag < 0:
        raise ConfigError(f"max_lag is {cluster.max_lag}: it must be at least 0")
    if cluster.replay not in ("device", "host"):
        raise ConfigError(f"replay is '{cluster.replay}': choose device or host")
    if cluster.shards < 0 or cluster.learners < 1:
        problem = f"shards is {cluster.shards} and learners is {cluster.learners}"
        raise ConfigError(f"{problem}: there must be at least 1 learner, and 0 shards means as many as replicas")
    cluster = informed(cluster, graph)
    function = resolve(policy)
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", "policy")
    returned = function(graph.top_stages, cluster)
    fragments = list(returned) if isinstance(returned, Iterable) else []
    invalid_items = [item for item in fragments if not isinstance(item, Fragment)]
    if invalid_items or not fragments:
        wrong = invalid_items or returned
        raise ConfigError(f"distribution policy '{name}' must return a list of Fragment, got {wrong}")
    placement = place(graph, fragments, cluster)
    if cluster.replay == "host":
        _check_in_host_memory(placement.fragments, name)
    if cluster.shards:
        _check_used("shards", cluster.shards, ("insert",), placement.fragments, name)
    if cluster.learners > 1:
        _check_used("learners", cluster.learners, ("learn", "gradient"), placement.fragments, name)
    if merge:
        placement = place(graph, merge_fragments(placement.fragments, graph.host_stages), cluster)
    plan = project_placement(placement, name)
    check_plan(plan)
    kinds = {interface.delivery for interface in plan.interfaces}
    if cluster.lag and not any(delivery.lag for delivery in kinds):
        raise ConfigError(
            f"lag is {cluster.lag}, but distribution policy '{name}' has nothing to overlap: leave it out, or use "
            f"{_OVERLAPS}"
        )
    if cluster.max_lag is not None and not any(delivery.kind == "latest" for delivery in kinds):
        raise ConfigError(
            f"max_lag is {cluster.max_lag}, but distribution policy '{name}' is not asynchronous: leave it out"
        )
    return plan


def _check_in_host_memory(fragments: Sequence[Fragment], policy: str) -> None:
    """ConfigError unless the stage that writes the replay is on CPU devices, whose memory is that of the host."""
    devices = [device for fragment in fragments if "insert" in fragment.stages for device in fragment.devices]
    if not devices:
        raise ConfigError("replay is 'host', but this algorithm has no replay (no stage 'insert'): leave it out")
    if elsewhere := [device for device in devices if not device.startswith("cpu:")]:
        problem = f"replay is 'host', but distribution policy '{policy}' keeps the replay on {elsewhere[0]}"
        raise ConfigError(f"{problem}: use replay or replay_async, which place it apart")


def _check_used(option: str, count: int, stages: Sequence[str], fragments: Sequence[Fragment], policy: str) -> None:
    """ConfigError unless a fragment with one of these stages has as many replicas as were asked for."""
    if not any(fragment.replicas == count for fragment in fragments if set(stages) & set(fragment.stages)):
        problem = f"{option} is {count}, but distribution policy '{policy}' does not use it"
        raise ConfigError(f"{problem}: leave it out, or use distribution policy 'replay'")


def informed(cluster: Cluster, graph: Graph) -> Cluster:
    """The cluster with everything that a distribution policy may know of the graph besides its stages."""
    nested = tuple(stage for stage in graph.stages if stage not in graph.top_stages)
    graph_facts = {"host": graph.host_stages, "nested": nested, "rollout": graph.rollout_stages}
    return dataclasses.replace(cluster, agents=graph.sizes.get("agents", 1), **graph_facts)
