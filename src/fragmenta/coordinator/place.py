"""Give every stage its fragment, and refuse what a policy forgot or invented."""

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
    """Replicas that talk to each other are in processes of their own."""

    def fragment_of(self, call: Call) -> str:
        """The fragment that runs a call."""
        return next(f.name for f in self.fragments if call.holds[0] in f.stages)


def place(graph: Graph, fragments: Sequence[Fragment], cluster: Cluster) -> Placement:
    """Check a policy's answer against the graph, and open the stages of which it places the inner ones.

    Afterwards every Call has one fragment, devices are listed per replica, and replicas divide the environments.
    """
    fragments = tuple(_complete(fragment, cluster, graph) for fragment in fragments)
    placed = [stage for fragment in fragments for stage in fragment.stages]
    for name in placed:
        if name not in graph.stages:
            raise unknown("stage", name, graph.stages, "; the policy places a stage that the algorithm does not have")
        if placed.count(name) > 1:
            raise ConfigError(f"stage '{name}' is placed in {placed.count(name)} fragments: place it in one")
    names = [fragment.name for fragment in fragments]
    for source in (d.source for fragment in fragments for d in fragment.delivery):
        if source not in names:
            raise unknown("fragment", source, names, "; a delivery names it as its source")
    if len(set(names)) < len(names):
        raise ConfigError(f"fragments {', '.join(names)} must have different names")
    for fragment in fragments:
        _check_divides(fragment, graph)
    graph = _open(graph, frozenset(placed))
    placement = Placement(graph, tuple(fragment for fragment in fragments if fragment.stages), cluster.apart)
    for node in graph.block.walk():
        if isinstance(node, Call):
            homes = {f.name for f in fragments if set(node.holds) & set(f.stages)}
            if len(homes) > 1:
                raise ConfigError(
                    f"stages {', '.join(node.holds)} are inside one {node.stage.partition('(')[0]}, which cannot be "
                    f"cut: place them in one fragment, or use jax.lax.scan"
                )
    return placement


def _complete(fragment: Fragment, cluster: Cluster, graph: Graph) -> Fragment:
    if fragment.replicas < 1:
        raise ConfigError(f"fragment '{fragment.name}' has {fragment.replicas} replicas: it needs at least 1")
    if fragment.replicas > 1 and fragment.axis not in graph.sizes:
        raise ConfigError(
            f"fragment '{fragment.name}' has replicas along '{fragment.axis}': choose one of {', '.join(graph.sizes)}"
        )
    devices = tuple(_device(name, cluster) for name in fragment.devices)
    if len(devices) == 1:
        devices = devices * fragment.replicas
    if len(devices) != fragment.replicas:
        raise ConfigError(
            f"fragment '{fragment.name}' names {len(devices)} devices for {fragment.replicas} replicas: "
            f"name one for all, or one for each"
        )
    return dataclasses.replace(fragment, devices=devices)


def _device(name: str, cluster: Cluster) -> str:
    """A device of the cluster; a kind alone, as in `gpu`, is the first of that kind."""
    matching = [d for d in cluster.devices if name in (d, d.partition(":")[0])]
    if not matching:
        raise unknown("device", name, cluster.devices)
    return matching[0]


def _open(graph: Graph, placed: frozenset[str]) -> Graph:
    """Look into stages that are not placed themselves but hold stages that are."""
    while True:
        calls = [node for node in graph.block.walk() if isinstance(node, Call)]
        missing = {name: node for node in calls for name in node.holds if name not in placed}
        called = {name for call in calls for name in call.holds}
        for call in calls:
            # A stage that is called within another one goes with it; where it is called alone, it is placed itself.
            for name in (set(call.inner) & placed) - called:
                if call.stage in placed:
                    raise ConfigError(f"stages '{call.stage}' and '{name}' within it are both placed: place one")
        if not missing:
            return graph
        for name, node in missing.items():
            if not set(node.inner) & placed:
                raise ConfigError(
                    f"stage '{name}' is in no fragment: add it to the stages of one"
                    + (f" (or the stages within it: {', '.join(node.inner)})" if node.inner else "")
                )
        inside = {outer for node in missing.values() for outer in (node.stage, *node.inner)} - placed
        graph = graph.retrace(graph.sizes, frozenset(inside))


def _check_divides(fragment: Fragment, graph: Graph) -> None:
    """Replicas hold parts of equal size."""
    if fragment.axis is None or fragment.replicas == 1 or graph.sizes[fragment.axis] % fragment.replicas == 0:
        return
    size, noun, count = graph.sizes[fragment.axis], graph.nouns[fragment.axis], fragment.replicas
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    fitting = [max(d for d in divisors if d <= count), *[d for d in divisors if d > count][:1]]
    below, above = size - size % count, size - size % count + count
    sizes_text = f"{below} or {above}" if below else f"{above}"
    raise ConfigError(
        f"{count} replicas of fragment '{fragment.name}' do not divide {size} {noun}: "
        f"the nearest that do are {' and '.join(map(str, fitting))} replicas, or {sizes_text} {noun}"
    )
