"""Assign every stage to a fragment; reject stages that the distribution policy left out or made up."""

import dataclasses
from collections.abc import Sequence

from fragmenta.errors import ConfigError, unknown
from fragmenta.graph import Call, Fragment, Graph
from fragmenta.policies import Cluster


@dataclasses.dataclass(frozen=True)
class Placement:
    """Every top-level Call of `graph` belongs to exactly one of `fragments`."""

    graph: Graph
    fragments: tuple[Fragment, ...]
    apart: bool = False
    """Whether replicas that exchange values run in separate processes."""

    def fragment_of(self, call: Call) -> str:
        """The fragment that runs a call."""
        return next(f.name for f in self.fragments if call.holds[0] in f.stages)


def place(graph: Graph, fragments: Sequence[Fragment], cluster: Cluster) -> Placement:
    """Check the fragments of a distribution policy against the graph, and open stages whose inner stages it places.

    Afterwards every Call has one fragment, devices are listed per replica, and replica counts divide their axes.
    """
    fragments = tuple(_complete(fragment, cluster, graph) for fragment in fragments)
    placed_stages = [stage for fragment in fragments for stage in fragment.stages]
    for name in placed_stages:
        if name not in graph.stages:
            hint = "; the distribution policy places a stage that the algorithm does not have"
            raise unknown("stage", name, graph.stages, hint)
        if placed_stages.count(name) > 1:
            raise ConfigError(f"stage '{name}' is placed in {placed_stages.count(name)} fragments: place it in one")
    names = [fragment.name for fragment in fragments]
    for source in (d.source for fragment in fragments for d in fragment.delivery):
        if source not in names:
            raise unknown("fragment", source, names, "; a delivery names it as its source")
    if len(set(names)) < len(names):
        raise ConfigError(f"fragment names must be unique, got {', '.join(names)}: rename one")
    for fragment in fragments:
        _check_divides(fragment, graph)
    graph = _open(graph, frozenset(placed_stages))
    placement = Placement(graph, tuple(fragment for fragment in fragments if fragment.stages), cluster.apart)
    for node in graph.block.walk():
        if isinstance(node, Call):
            homes = {f.name for f in fragments if set(node.holds) & set(f.stages)}
            if len(homes) > 1:
                raise ConfigError(
                    f"stages {', '.join(node.holds)} are inside one {node.stage.partition('(')[0]}, which cannot be "
                    f"split across fragments: place them in one fragment, or use jax.lax.scan"
                )
    return placement


def _complete(fragment: Fragment, cluster: Cluster, graph: Graph) -> Fragment:
    if fragment.replicas < 1:
        raise ConfigError(f"fragment '{fragment.name}' has {fragment.replicas} replicas: it needs at least 1")
    if fragment.replicas > 1 and fragment.axis not in graph.sizes:
        raise ConfigError(
            f"fragment '{fragment.name}' has replicas along '{fragment.axis}': choose one of {', '.join(graph.sizes)}"
        )
    named = _devices_by_name(cluster)
    if unknown_names := [name for name in fragment.devices if name not in named]:
        raise unknown("device", unknown_names[0], {*named.values()})
    devices = tuple(named[name] for name in fragment.devices)
    if len(devices) == 1:
        devices = devices * fragment.replicas
    if len(devices) != fragment.replicas:
        raise ConfigError(
            f"fragment '{fragment.name}' names {len(devices)} devices for {fragment.replicas} replicas: "
            f"name one for all replicas, or one per replica"
        )
    return dataclasses.replace(fragment, devices=devices)


def _devices_by_name(cluster: Cluster) -> dict[str, str]:
    """The devices of the cluster, and CPU devices of its hosts; a bare kind such as `gpu` means the first of that
    kind."""
    devices = dict.fromkeys((*cluster.devices, *cluster.in_host_memory(cluster.devices)))
    first = {device.partition(":")[0]: device for device in reversed(devices)}
    return first | {device: device for device in devices}


def _open(graph: Graph, placed_stages: frozenset[str]) -> Graph:
    """Open the stages that are not placed themselves but contain stages that are."""
    while True:
        calls = [node for node in graph.block.walk() if isinstance(node, Call)]
        missing = {name: node for node in calls for name in node.holds if name not in placed_stages}
        called_stages = {name for call in calls for name in call.holds}
        for call in calls:
            # A stage called within another runs with it; where it is also called at top level, it is placed itself.
            for name in (set(call.inner) & placed_stages) - called_stages:
                if call.stage in placed_stages:
                    raise ConfigError(f"stages '{call.stage}' and '{name}' within it are both placed: place only one")
        if not missing:
            return graph
        for name, node in missing.items():
            if not set(node.inner) & placed_stages:
                raise ConfigError(
                    f"stage '{name}' is in no fragment: add it to the stages of one"
                    + (f" (or the stages within it: {', '.join(node.inner)})" if node.inner else "")
                )
        stages_to_open = {outer for node in missing.values() for outer in (node.stage, *node.inner)} - placed_stages
        graph = graph.retrace(graph.sizes, frozenset(stages_to_open))


def _check_divides(fragment: Fragment, graph: Graph) -> None:
    """The number of replicas must divide the axis, because replicas hold parts of equal size."""
    if fragment.axis is None or fragment.replicas == 1 or graph.sizes[fragment.axis] % fragment.replicas == 0:
        return
    size, noun, count = graph.sizes[fragment.axis], graph.nouns[fragment.axis], fragment.replicas
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    replica_counts = [max(d for d in divisors if d <= count), *[d for d in divisors if d > count][:1]]
    below, above = size - size % count, size - size % count + count
    sizes_text = f"{below} or {above}" if below else f"{above}"
    raise ConfigError(
        f"{count} replicas of fragment '{fragment.name}' do not divide {size} {noun}: "
        f"the nearest that do are {' and '.join(map(str, replica_counts))} replicas, or {sizes_text} {noun}"
    )
