"""The costs of one plan on one set of machines, from a profile."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from fragmenta.engines.replica import hosts_environments
from fragmenta.graph import Plan, Program
from fragmenta.planner.channels import Channels
from fragmenta.planner.costs import INTERPRETER, Cost, Hop, Overheads
from fragmenta.planner.profile import Profile
from fragmenta.planner.units import Unit
from fragmenta.policies.machines import Device, Machines
from fragmenta.worker.steps import Host, Schedule, Segment

OVERHEADS = Overheads(round=1.5e-5, iteration=4.5e-4, report=9e-5)
"""Of workers and of the loop of a run, as runs showed them beside their simulation where some work in Python takes
`PYTHON_SECONDS`; elsewhere they are as much slower or faster as that is."""
PYTHON_SECONDS = 3.8e-4
FIRST_WINDOW = 14_480
"""Bytes that TCP sends before it hears from the other side. What a connection sends at once, iteration by iteration, is
spread over about a round trip also later: its rate is estimated from what it delivered before."""


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
        shares: Sequence[float] = (),
    ) -> None:
        """`is_apart`: whether workers are processes; `is_here`: whether the machines are the one at hand; `stepping`
        returns the cost of a step of one of so many lanes of host environments; `shares` are what other processes
        leave of the cores of the machine at hand, by default all."""
        self._channels = Channels(profile)
        slower = self._channels.message("python").send / PYTHON_SECONDS
        self.overheads = Overheads(*(slower * seconds for seconds in dataclasses.astuple(OVERHEADS)))
        self._plan, self._profile, self._machines = plan, profile, machines
        self._is_apart, self._is_here, self._stepping, self._shares = is_apart, is_here, stepping, shares
        self._units = {id(unit.segment): unit for unit in units}

    @property
    def units(self) -> list[Unit]:
        """All that is compiled for the plan."""
        return list(self._units.values())

    def unit_cost(self, unit: Unit) -> Cost:
        """What a unit costs, with what its replicas exchange between processes."""
        cost = self._profile.cost(unit, self.device(unit.schedule.program.fragment.devices[0]), self._is_here)
        if unit.members > 1 or (unit.width > 1 and not self._is_here):
            cost = dataclasses.replace(cost, seconds=cost.seconds + self._exchange_seconds(unit))
        return cost

    def segment(self, schedule: Schedule, segment: Segment) -> Cost:
        """One call of a segment."""
        cost = self.unit_cost(self._units[id(segment)])
        held = 0.0 if self._is_apart else min(1.0, self._channels.message("call").send / max(cost.seconds, 1e-9))
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
            by_reference = self._channels.message("reference")
            moved = 0.0 if source == target else self._channels.message("device", size).receive
            return Hop(by_reference.send, by_reference.receive + moved, by_reference.way, size, math.inf)
        nodes = self._machines.node_of(source), self._machines.node_of(target)
        if nodes[0].name == nodes[1].name:
            cost = self._channels.message("pipe", size)
            return Hop(cost.send, cost.receive, cost.way, size, math.inf)
        cost, link = self._channels.message("socket", size), self._machines.between(source, target)
        shared = {f"out of {nodes[0].name}": 1.0, f"into {nodes[1].name}": 1.0}
        copying = cost.way - self._channels.message("socket").way  # while the bytes are on their way
        seconds = max(size / link.bandwidth, copying)
        bandwidth = size / seconds if size else link.bandwidth
        trips = 3 if size > FIRST_WINDOW else 1  # one way, and for the rest after what came back
        return Hop(cost.send, cost.receive, trips * link.latency, size, bandwidth, shared)

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
        shares = {node.name: self._shares or (1.0,) * node.cores for node in self._machines.nodes}
        cores = {name: sum(each) for name, each in shares.items()}
        accelerators = {name: 1.0 for name in self._machines.devices if self.device(name).kind != "cpu"}
        networks = {f"{way} {node.name}": 1.0 for node in self._machines.nodes for way in ("out of", "into")}
        single = {f"{name}, core {i}": share for name, each in shares.items() for i, share in enumerate(each)}
        return cores | single | accelerators | networks

    def node_of(self, device: str) -> str:
        """The name of the node that a device is part of."""
        return self._machines.node_of(device).name

    def device(self, name: str) -> Device:
        """What a device is; without processes, a device of the CPU may use all of its cores."""
        device = self._machines.device(name)
        return self._machines.node_of(name).cpu if device.kind == "cpu" and not self._is_apart else device

    def _exchange_seconds(self, unit: Unit) -> float:
        """What exchanging values among replicas takes, each after the other."""
        program = unit.schedule.program
        devices, members = program.fragment.devices, program.fragment.replicas
        seconds = 0.0
        for exchange in program.exchanges():
            # Of a sum every byte goes around twice: as a part, and in the result.
            passes = 1 if exchange.kind == "gather" else 2
            if self._is_apart and len({self._machines.node_of(device).name for device in devices}) == 1:
                each = self._channels.collective(members, exchange.bytes * passes / 2)
            else:
                link = self._machines.between(devices[0], devices[-1])
                moved = passes * (members - 1) / members * exchange.bytes
                each = link.latency * max(1, members.bit_length() - 1) + moved / link.bandwidth
            seconds += exchange.times * each
        return seconds
