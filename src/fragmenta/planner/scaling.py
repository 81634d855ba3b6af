"""How throughput grows with the number of devices: predictions for clusters of many sizes."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.planner.candidates import Candidate, candidate_of, identity_of
from fragmenta.planner.collecting import without_collecting
from fragmenta.planner.predicting import predictor
from fragmenta.planner.profile import Profile
from fragmenta.planner.search import Predictor
from fragmenta.planner.simulate import MOST_SIMULATED
from fragmenta.policies import Cluster, Policy
from fragmenta.policies.machines import Machines
from fragmenta.policies.tables import LARGEST
from fragmenta.profiling.timings import bottleneck
from fragmenta.tracing.trace import trace

Kind = Literal["weak", "strong"]
"""Whether every device has as many environments, or all together."""


@dataclasses.dataclass(frozen=True)
class ScalePoint:
    """A distribution policy on so many devices."""

    policy: str
    devices: int
    envs: int
    steps_per_second: float
    bottleneck: str
    """A sentence; empty except for the largest number of devices."""


@dataclasses.dataclass(frozen=True)
class ScalingCurve:
    """The points of one distribution policy, by number of devices."""

    policy: str
    points: tuple[ScalePoint, ...]

    def efficiency(self, point: ScalePoint) -> float:
        """The speed per device as a share of that on the fewest devices."""
        first = self.points[0]
        return point.steps_per_second / point.devices / (first.steps_per_second / first.devices)


def sizes(text: str) -> tuple[int, ...]:
    """The powers of two from the first to the last number of `1..4096`, and these; ConfigError for other texts."""
    first, dots, last = text.partition("..")
    expected = "two numbers of devices, as in 1..4096"
    if not (dots and first.isdigit() and last.isdigit()):
        raise ConfigError(f"scale is '{text}': give {expected}")
    low, high = int(first), int(last)
    if not 1 <= low < high <= LARGEST:
        raise ConfigError(f"scale is '{text}': give {expected}, the second larger and at most {LARGEST}")
    powers = (2**i for i in range(high.bit_length()))
    return tuple(sorted({low, high, *(n for n in powers if low < n < high)}))


def machines_with(machines: Machines, count: int) -> Machines:
    """The same machines with so many devices: the first ones, or with more nodes of the last kind."""
    nodes, left = [], count
    while left > 0:
        node = machines.nodes[min(len(nodes), len(machines.nodes) - 1)]
        if len(nodes) >= len(machines.nodes):
            node = dataclasses.replace(node, name=f"{node.name}+{len(nodes)}")
        nodes.append(dataclasses.replace(node, devices=node.devices[:left]))
        left -= len(nodes[-1].devices)
    return Machines(tuple(nodes), machines.link)


@without_collecting()
def scale(
    algorithm: Algorithm,
    env: Environment,
    machines: Machines,
    policies: Sequence[str | Policy],
    counts: Sequence[int],
    kind: Kind,
    profile: Profile | None = None,
) -> list[ScalingCurve]:
    """A curve per distribution policy, without those that cannot place the algorithm and those whose programs are the
    same as of an earlier one. Everything but what `profile` has is estimated."""
    points: dict[str, list[ScalePoint]] = {}
    owners: dict[Any, str] = {}
    for count in reversed(counts):  # the largest first: what is the same there as another need not be predicted below
        envs = algorithm.num_envs * (count if kind == "weak" else 1)
        sized = dataclasses.replace(algorithm, num_envs=envs)
        described = machines_with(machines, count)
        graph = trace(sized, env)
        predict = predictor(sized, env, graph, profile or Profile(), described)
        for candidate in _candidates(graph, policies, described, count):
            is_last = count == counts[-1]
            if is_last and owners.setdefault(identity_of(candidate), candidate.name) == candidate.name:
                points[candidate.name] = []
            if candidate.name in points:
                points[candidate.name].insert(0, _point(predict, candidate, count, envs, is_last))
    if not points:
        raise ConfigError(f"no distribution policy can place {type(algorithm).__name__} on {counts[0]} devices")
    return [ScalingCurve(name, tuple(its_points)) for name, its_points in points.items()]


def _candidates(graph: Any, policies: Sequence[str | Policy], machines: Machines, count: int) -> Iterator[Candidate]:
    apart = len(machines.nodes) > 1
    cluster = Cluster(machines.devices, count, apart=apart, machines=machines)
    for policy in policies:
        candidate = candidate_of(graph, policy, "ray" if apart else "local", cluster, merge=True)
        if candidate is not None:
            yield candidate


def _point(predict: Predictor, candidate: Candidate, count: int, envs: int, is_last: bool) -> ScalePoint:
    rate = predict.rate(candidate, MOST_SIMULATED)
    text = bottleneck(predict.predict(candidate, 4, (1, 1)).simulation.timings) if is_last else ""
    return ScalePoint(candidate.name, count, envs, rate, text)
