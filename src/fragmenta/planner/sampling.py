"""Some replicas stand for all: those that do the same at the same time need not all be simulated."""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from fragmenta.graph import Plan, Program
from fragmenta.planner.costs import Cost, Costs

MOST_FREE = 32
"""The same for free-running ones, which are each at another point of their iteration."""
ANYTHING = Cost(1.0, interpreter=1.0)
"""A computation that occupies all that one may occupy."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """The replicas of a fragment that are simulated."""

    program: Program
    replicas: tuple[int, ...]
    weights: Mapping[int, float]
    """For how many each of them stands."""
    neighbours: Mapping[str, float]
    """By node, how many of the replicas there each of those that are simulated there stands for."""
    crowds: Mapping[str, float]
    """The same by resource that computing occupies."""

    @property
    def is_whole(self) -> bool:
        """Whether all replicas are simulated."""
        return len(self.replicas) == self.program.replicas

    def device(self, replica: int) -> str:
        """The device of a replica."""
        return device_of(self.program, replica)


def samples(plan: Plan, costs: Costs, most: int) -> dict[str, Sample]:
    """The sample of every fragment; at most so many replicas, or more of those that are free-running."""
    return {
        program.fragment.name: _sample(program, program.fragment.name in plan.free_running, costs, most)
        for program in plan.programs
    }


def device_of(program: Program, replica: int) -> str:
    """The device of a replica."""
    devices = program.fragment.devices
    return devices[replica % len(devices)]


def _sample(program: Program, is_free: bool, costs: Costs, most: int) -> Sample:
    count = program.replicas
    if count <= (MOST_FREE if is_free else most):
        everyone = tuple(range(count))
        return Sample(program, everyone, dict.fromkeys(everyone, 1.0), {}, {})
    if is_free:
        chosen = tuple(int((i + 0.5) * count / MOST_FREE) for i in range(MOST_FREE))
        weights = dict.fromkeys(chosen, count / MOST_FREE)
    else:  # the first stands for itself: it may send what all hold, and be where those are to whom it is sent
        others = most - 1
        chosen = (0, *(1 + int((i + 0.5) * (count - 1) / others) for i in range(others)))
        weights = dict.fromkeys(chosen, (count - 1) / others) | {0: 1.0}
    nodes = [costs.node_of(device_of(program, i)) for i in range(count)]
    resources = [(*costs.resources(program, i, ANYTHING),) for i in range(count)]
    here = Counter(nodes[i] for i in chosen)
    occupied = Counter(name for i in chosen for name in resources[i])
    all_nodes, all_resources = Counter(nodes), Counter(name for names in resources for name in names)
    return Sample(
        program,
        chosen,
        weights,
        {name: all_nodes[name] / here[name] for name in here},
        {name: all_resources[name] / occupied[name] for name in occupied},
    )
