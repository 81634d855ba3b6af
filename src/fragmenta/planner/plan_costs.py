"""The costs of one plan on one set of machines, from a profile."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from fragmenta.engines.replica import hosts_environments
from fragmenta.graph import Plan, Program
from fragmenta.planner.costs import INTERPRETER, Cost, Hop, Overheads
from fragmenta.planner.profile import Profile
from fragmenta.planner.units import Unit
from fragmenta.policies.machines import Device, Machines
from fragmenta.worker.steps import Host, Schedule, Segment

OVERHEADS = Overheads(round=1.5e-5, iteration=4.5e-4, report=9e-5)
"""Of workers and of the loop of a run, on two cores of an AMD EPYC, as runs showed them beside their simulation."""
REFERENCE = Hop(3e-6, 5e-6, 2.5e-5, 0, float("inf"))
"""A value that is passed by reference to another thread."""
CALL_SECONDS = 2.5e-5
"""How long calling a compiled program holds the interpreter."""
PLACE_SECONDS = 3e-5
"""To place a value on another device of the same process."""
PIPE_SECONDS, COPY_BANDWIDTH = 1.2e-5, 8e9
"""The work of either end of a pipe between processes, and the rate at which it copies bytes."""
COLLECTIVE_SECONDS, COLLECTIVE_BANDWIDTH = 2e-4, 8e8
"""What replicas in processes take for each exchange of values, and the rate of its bytes."""


class PlanCosts:
    """What the simulator needs to know of a plan."""

    def __init__(
        self,
        plan: Plan,
        units: Iterable[Unit],
        profile: Profile,
        machines: Machines,
        is_apart: bool,
        is_here: bool,
        stepping: Callable[[int], Cost | None],
    ) -> None:
        """`is_apart`: whether workers are processes; `is_here`: whether the machines are the one at hand; `stepping`
        returns the cost of a step of one of so many lanes of host environments."""
        self.overheads = OVERHEADS
        self._plan, self._profile, self._machines = plan, profile, machines
        self._is_apart, self._is_here, self._stepping = is_apart, is_here, stepping
        self._units = {id(unit.segment): unit for unit in units}

    @property
    def units(self) -> list[Unit]:
        """All that is compiled for the plan."""
        return list(self._units.values())

    def unit_cost(self, unit: Unit) -> Cost:
        """What a unit costs, with what its replicas exchange between processes."""
        cost = self._profile.cost(unit, self.device(unit.schedule.program.fragment.devices[0]), self._is_here)
        if unit.members > 1 or (unit.width > 1 and not self._is_here):
            exchanges = unit.schedule.program.exchanges()
            count = sum(exchange.times for exchange in exchanges)
            size = sum(exchange.bytes * exchange.times for exchange in exchanges)
            members = unit.schedule.program.fragment.replicas
            seconds = cost.seconds + self._exchange_seconds(unit, members, count, size)
            cost = dataclasses.replace(cost, seconds=seconds)
        return cost

    def segment(self, schedule: Schedule, segment: Segment) -> Cost:
        """One call of a segment."""
        cost = self.unit_cost(self._units[id(segment)])
        held = 0.0 if self._is_apart else min(1.0, CALL_SECONDS / max(cost.seconds, 1e-9))
        return dataclasses.replace(cost, interpreter=held)

    def burst(self, schedule: Schedule) -> Cost | None:
        """One iteration of a fragment that runs several per call."""
        first = self._units.get(id(schedule.steps[0]))
        return self.unit_cost(first) if first and first.is_burst else None

    def host(self, program: Program, step: Host) -> Cost:
        """One step of one replica's host environments."""
        return self._stepping(self._plan.lanes) or Cost(1e-3)

    def hop(self, source: str, target: str, size: int) -> Hop:
        """A message between replicas: by reference within a process, through a pipe or a network between processes."""
        if not self._is_apart:
            moved = 0.0 if source == target else PLACE_SECONDS + size / COPY_BANDWIDTH
            return Hop(REFERENCE.send, REFERENCE.receive + moved, REFERENCE.latency, size, float("inf"))
        link, copy = self._machines.between(source, target), size / COPY_BANDWIDTH
        names = self._machines.node_of(source).name, self._machines.node_of(target).name
        shared = {} if names[0] == names[1] else {f"out of {names[0]}": 1.0, f"into {names[1]}": 1.0}
        bandwidth = link.bandwidth if shared else float("inf")
        return Hop(PIPE_SECONDS + copy, PIPE_SECONDS + copy, link.latency, size, bandwidth, shared)

    def resources(self, program: Program, replica: int, cost: Cost) -> Mapping[str, float]:
        """Cores, or the device, and the interpreter of a process."""
        devices = program.fragment.devices
        name = devices[replica % len(devices)]
        if self.device(name).kind != "cpu":
            return {name: 1.0}
        node = self._machines.node_of(name)
        if not self._is_apart:
            return {node.name: cost.cores, INTERPRETER: cost.interpreter}
        if hosts_environments(program) and self._is_here and node.cores // program.replicas <= 1:
            return {node.name: cost.cores, f"{node.name}, core {replica % node.cores}": cost.cores}  # pinned to it
        return {node.name: cost.cores}

    @property
    def capacities(self) -> Mapping[str, float]:
        """Cores by node, one program at a time per accelerator, the bytes of a network."""
        cores = {node.name: float(node.cores) for node in self._machines.nodes}
        accelerators = {name: 1.0 for name in self._machines.devices if self.device(name).kind != "cpu"}
        networks = {f"{way} {node.name}": 1.0 for node in self._machines.nodes for way in ("out of", "into")}
        single = {f"{node.name}, core {i}": 1.0 for node in self._machines.nodes for i in range(node.cores)}
        return cores | single | accelerators | networks

    def node_of(self, device: str) -> str:
        """The name of the node that a device is part of."""
        return self._machines.node_of(device).name

    def device(self, name: str) -> Device:
        """What a device is; without processes, a device of the CPU may use all of its cores."""
        device = self._machines.device(name)
        return self._machines.node_of(name).cpu if device.kind == "cpu" and not self._is_apart else device

    def _exchange_seconds(self, unit: Unit, members: int, count: float, size: float) -> float:
        """What exchanging values among replicas takes, each after the other: two rounds of all of the bytes at most."""
        devices = unit.schedule.program.fragment.devices
        link = self._machines.between(devices[0], devices[-1])
        latency = max(link.latency, COLLECTIVE_SECONDS if self._is_apart and self._is_here else 0.0)
        bandwidth = min(link.bandwidth, COLLECTIVE_BANDWIDTH) if self._is_apart and self._is_here else link.bandwidth
        share = 2 * (members - 1) / members
        return count * latency * max(1.0, members.bit_length() - 1) + share * size / bandwidth
