"""Prepares a plan for an engine: compiles every fragment, splits the state, connects workers, joins the final state."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from fragmenta.coordinator.partition.parts import join_parts
from fragmenta.engines.in_place import in_place
from fragmenta.graph import Delivery, Graph, Interface, Operator, Plan, Program
from fragmenta.graph.layout import Split
from fragmenta.profiling.timeline import Stopwatch, Window
from fragmenta.tracing.names import is_in
from fragmenta.worker.backends.xla import Site, from_raw, site
from fragmenta.worker.channels.mailbox import Mailbox
from fragmenta.worker.channels.memory import End, MemoryChannel, Receiver, Sender
from fragmenta.worker.channels.timed import TimedMailbox, TimedReceiver, TimedSender
from fragmenta.worker.deploy import Deployment, Ports, deploy
from fragmenta.worker.optimize import optimize
from fragmenta.worker.turns import take_turns


@dataclasses.dataclass(frozen=True)
class Assignment:
    """A worker's share of the plan: a compiled fragment, the replica index, its channels."""

    deployment: Deployment
    replica: int
    ports: Ports


def compile_plan(plan: Plan) -> list[list[Deployment]]:
    """Compile all fragments in parallel: per program, one deployment per worker.

    Programs that share several devices are called in turn.
    """
    replicas = {program.fragment.name: program.replicas for program in plan.programs}
    targets: dict[tuple[int, Site], None] = {}
    sites: list[list[Site]] = []
    for index, program in enumerate(plan.programs):
        devices = program.fragment.devices
        groups = [devices] if program.together or program.replicas == 1 else [(device,) for device in devices]
        sites.append([site(group, program.fragment.axis if program.together else None) for group in groups])
        targets.update(dict.fromkeys((index, where) for where in sites[-1]))

    def build(item: tuple[int, Site]) -> Deployment:
        index, where = item
        schedule = optimize(plan.programs[index], replicas, where.unroll)
        return deploy(schedule, where)

    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="fragmenta-compile") as pool:
        built = dict(zip(targets, take_turns(list(pool.map(build, targets))), strict=True))
    return [[built[index, where] for where in places] for index, places in enumerate(sites)]


@dataclasses.dataclass(frozen=True)
class Route:
    """A connection from one replica to another: for one interface, or for all interfaces between two fragments that do
    not wait for each other."""

    producer: str
    source: int
    consumer: str
    target: int
    interfaces: tuple[Interface, ...]

    @property
    def delivery(self) -> Delivery:
        """The delivery of its interfaces."""
        return self.interfaces[0].delivery

    @property
    def box(self) -> tuple[str, str, int]:
        """Identifies the mailbox that it shares with other routes: all consumers of `latest` values share one."""
        return self.producer, self.consumer, 0 if self.delivery.kind == "latest" else self.target

    @property
    def name(self) -> str:
        """A unique name, the same in every process that builds the plan."""
        value = self.interfaces[0].value.id
        return f"{self.producer}.{self.source}-{self.consumer}.{self.target}-{value}"


def routes(plan: Plan, only: Mapping[str, Sequence[int]] | None = None) -> list[Route]:
    """All routes of a plan, or those between some replicas of each fragment. Fragments with as many replicas must then
    have the same ones, and the first among them."""
    replicas = {program.fragment.name: program.replicas for program in plan.programs}
    members = only or {name: range(count) for name, count in replicas.items()}
    result, bundles = [], {}
    for interface in plan.interfaces:
        ends = interface.producer, interface.consumer
        if interface.delivery.kind == "every":
            result += [Route(ends[0], a, ends[1], b, (interface,)) for a, b in _pairs(interface, replicas, members)]
        else:
            bundles.setdefault(ends, []).append(interface)
    for (producer, consumer), interfaces in bundles.items():
        pairs = [(a, b) for a in members[producer] for b in members[consumer]]
        if interfaces[0].delivery.kind == "any" and replicas[consumer] > 1:
            pairs = [(a, b) for a, b in pairs if a == b]
        result += [Route(producer, a, consumer, b, tuple(interfaces)) for a, b in pairs]
    return result


def ports_of(
    plan: Plan,
    fragment: str,
    replica: int,
    sender: Callable[[Route], Sender],
    receiver: Callable[[Route], Receiver],
    mailbox: Callable[[list[Route]], Mailbox],
) -> Ports:
    """The ports of one replica: `sender` and `receiver` return an end of a route, `mailbox` that of several routes."""
    ports = Ports({}, {}, {}, {}, {})
    boxes: dict[tuple[bool, str], list[Route]] = {}
    for interface in plan.interfaces:
        if interface.producer == fragment and interface.delivery.kind == "every":
            # Only the first replica sends a value that all replicas hold whole.
            ports.outgoing[interface.key] = []
    for route in routes(plan):
        sends = (route.producer, route.source) == (fragment, replica)
        if not sends and (route.consumer, route.target) != (fragment, replica):
            continue
        if route.delivery.kind != "every":
            boxes.setdefault((sends, route.consumer if sends else route.producer), []).append(route)
            continue
        key = route.interfaces[0].key
        if sends:
            ports.outgoing.setdefault(key, []).append(sender(route))
        else:
            ports.incoming.setdefault(key, []).append(receiver(route))
    for (sends, other), group in boxes.items():
        if sends and group[0].delivery.kind == "reply":
            ports.replies[other] = [mailbox([route]) for route in group]
            continue
        (ports.posts if sends else ports.pickups)[other] = mailbox(group)
    return ports


def assign(
    plan: Plan,
    deployments: Sequence[Sequence[Deployment]],
    channel: Callable[[], MemoryChannel],
    mailbox: Callable[[Delivery], Mailbox],
) -> list[Assignment]:
    """One assignment per worker, all in this process; both ends of a route are the same object."""
    channels = {route.name: channel() for route in routes(plan) if route.delivery.kind == "every"}
    boxes = {route.box: route.delivery for route in routes(plan) if route.delivery.kind != "every"}
    mailboxes = {box: mailbox(delivery) for box, delivery in boxes.items()}

    return [
        Assignment(
            deployment,
            replica,
            ports_of(
                plan,
                program.fragment.name,
                replica,
                lambda route: channels[route.name],
                lambda route: channels[route.name],
                lambda group: mailboxes[group[0].box],
            ),
        )
        for program, places in zip(plan.programs, deployments, strict=True)
        for replica, deployment in enumerate(places)
    ]


def connections(assignments: Sequence[Assignment]) -> dict[str, list[End | Mailbox]]:
    """All channels and mailboxes from one fragment to another, by `producer -> consumer`."""
    pairs: dict[str, list[End | Mailbox]] = {}
    for assignment in assignments:
        producer = assignment.deployment.schedule.program.fragment.name
        for (_, consumer), channels in assignment.ports.outgoing.items():
            pairs.setdefault(f"{producer} -> {consumer}", []).extend(channels)
        for consumer, box in assignment.ports.posts.items():
            pairs.setdefault(f"{producer} -> {consumer}", []).append(box)
        for consumer, replies in assignment.ports.replies.items():
            pairs.setdefault(f"{producer} -> {consumer}", []).extend(replies)
    return {pair: channels for pair, channels in pairs.items() if channels}


def time_workers(plan: Plan, assignments: Sequence[Assignment], window: Window) -> list[Stopwatch]:
    """Create a stopwatch for every worker, and wrap its channels and mailboxes so that they record to it."""
    programs = {program.fragment.name: program for program in plan.programs}
    replicas = {name: program.replicas for name, program in programs.items()}
    members = {name: range(count) for name, count in replicas.items()}
    stopwatches = []
    for assignment in assignments:
        name, replica, ports = (
            assignment.deployment.schedule.program.fragment.name,
            assignment.replica,
            assignment.ports,
        )
        stopwatch = Stopwatch(name, programs[name].worker(replica), window, follows=name in plan.free_running)
        stopwatches.append(stopwatch)
        for interface in plan.interfaces:
            if interface.delivery.kind != "every":
                continue
            producer, consumer = programs[interface.producer], programs[interface.consumer]
            pairs = _pairs(interface, replicas, members)
            between = [f"{producer.worker(source)} -> {consumer.worker(target)}" for source, target in pairs]
            if interface.producer == name:
                texts = [text for text, (source, _) in zip(between, pairs, strict=True) if source == replica]
                senders = zip(ports.outgoing[interface.key], texts, strict=True)
                ports.outgoing[interface.key] = [TimedSender(end, stopwatch, interface, text) for end, text in senders]
            if interface.consumer == name:
                texts = [text for text, (_, target) in zip(between, pairs, strict=True) if target == replica]
                receivers = zip(ports.incoming[interface.key], texts, strict=True)
                ports.incoming[interface.key] = [
                    TimedReceiver(end, stopwatch, interface, text) for end, text in receivers
                ]
        for boxes, side in ((ports.posts, "consumer"), (ports.pickups, "producer")):
            for peer, box in boxes.items():
                between = _between(plan, (name, peer) if side == "consumer" else (peer, name))
                boxes[peer] = TimedMailbox(box, stopwatch, between)
        for peer, replies in ports.replies.items():
            ports.replies[peer] = [TimedMailbox(box, stopwatch, _between(plan, (name, peer))) for box in replies]
    return stopwatches


def _between(plan: Plan, ends: tuple[str, str]) -> list[Interface]:
    return [interface for interface in plan.interfaces if (interface.producer, interface.consumer) == ends]


def collect(plan: Plan, states: Sequence[tuple[Program, dict[int, Any]]], initial: Sequence[Any]) -> list[Any]:
    """The whole state from the workers' leaves; a leaf that no worker holds keeps its initial value. Those that stay in
    place are joined in host memory: together they may fit on no device."""
    leaves, large = list(initial), in_place(plan.graph)
    for i in range(len(leaves)):
        holders = [(program, worker_leaves[i]) for program, worker_leaves in states if i in worker_leaves]
        if not holders:
            continue
        program, leaf = holders[0]
        value = plan.graph.state_inputs[i]
        layout = program.layout(value)
        kind = program.fragment.devices[0].partition(":")[0] if i in plan.graph.rebuildable else None
        where = None if i in large else jax.devices(kind)[0]  # a replay in host memory stays there
        if program.replicas > 1 and isinstance(layout, Split):
            parts = [leaf for owner, leaf in holders if owner is program]
            leaf = join_parts([jax.device_put(part, where) if where else np.asarray(part) for part in parts], layout)
        leaves[i] = from_raw(jax.device_put(leaf, where) if where else leaf, value.dtype)
    return leaves


def _pairs(
    interface: Interface, replicas: Mapping[str, int], members: Mapping[str, Sequence[int]]
) -> list[tuple[int, int]]:
    """Pairs of (producer replica, consumer replica) among these that exchange the interface."""
    sources, targets = members[interface.producer], members[interface.consumer]
    if interface.operator in (Operator.BROADCAST, Operator.SCATTER):
        return [(0, target) for target in targets]
    if interface.operator in (Operator.GATHER, Operator.REDUCE):
        return [(source, 0) for source in sources]
    if interface.operator == Operator.ALL_TO_ALL:
        return [(source, target) for source in sources for target in targets]
    is_paired = replicas[interface.producer] == replicas[interface.consumer]
    return [(target if is_paired else 0, target) for target in targets]


def positions(graph: Graph, fields: Sequence[str]) -> frozenset[int]:
    """The positions of the leaves in these fields of the state."""
    return frozenset(i for i, name in enumerate(graph.state_names) if is_in(name, fields))
