"""Prepare a plan for an engine: compile every fragment, split the initial state, connect, and join the final state."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.coordinator.partition.parts import joined, parts_of
from fragmenta.graph import Delivery, Interface, Operator, Plan, Program
from fragmenta.graph.layout import Split
from fragmenta.profiling.timeline import Stopwatch, Window
from fragmenta.worker.backends.xla import Site, from_raw, site, to_raw
from fragmenta.worker.channels.mailbox import Mailbox
from fragmenta.worker.channels.memory import Channel
from fragmenta.worker.channels.timed import TimedChannel, TimedMailbox
from fragmenta.worker.deploy import Deployment, Ports, deploy
from fragmenta.worker.optimize import optimize
from fragmenta.worker.turns import take_turns


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What one worker gets: a compiled fragment, which replica it is, its channels, its leaves of the state."""

    deployment: Deployment
    replica: int
    ports: Ports
    state: dict[int, Any]


def compile_plan(plan: Plan) -> list[list[Deployment]]:
    """Compile all fragments, several at a time: per program, one deployment per replica that runs apart.

    Afterwards programs that share several devices take turns.
    """
    replicas = {program.fragment.name: program.replicas for program in plan.programs}
    wanted: dict[tuple[int, Site], None] = {}
    sites: list[list[Site]] = []
    for index, program in enumerate(plan.programs):
        devices = program.fragment.devices
        groups = [devices] if program.together or program.replicas == 1 else [(device,) for device in devices]
        sites.append([site(group, program.fragment.axis if program.together else None) for group in groups])
        wanted.update(dict.fromkeys((index, where) for where in sites[-1]))

    def build(item: tuple[int, Site]) -> Deployment:
        index, where = item
        schedule = optimize(plan.programs[index], replicas, where.unroll)
        return deploy(schedule, where)

    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="fragmenta-compile") as pool:
        built = dict(zip(wanted, take_turns(list(pool.map(build, wanted))), strict=True))
    return [[built[index, where] for where in places] for index, places in enumerate(sites)]


@dataclasses.dataclass(frozen=True)
class Link:
    """A way from one replica to another: for one interface, or for all between two fragments that do not wait for each
    other."""

    producer: str
    source: int
    consumer: str
    target: int
    interfaces: tuple[Interface, ...]

    @property
    def delivery(self) -> Delivery:
        """How what goes this way is taken."""
        return self.interfaces[0].delivery

    @property
    def name(self) -> str:
        """What tells this link from all others; the same wherever the plan is made."""
        value = self.interfaces[0].value.id
        return f"{self.producer}.{self.source}-{self.consumer}.{self.target}-{value}"


def links(plan: Plan) -> list[Link]:
    """All links of a plan."""
    replicas = {program.fragment.name: program.replicas for program in plan.programs}
    found, bundled = [], {}
    for interface in plan.interfaces:
        ends = interface.producer, interface.consumer
        if interface.delivery.kind == "every":
            found += [Link(ends[0], a, ends[1], b, (interface,)) for a, b in _pairs(interface, replicas)]
        else:
            bundled.setdefault(ends, []).append(interface)
    for (producer, consumer), interfaces in bundled.items():
        pairs = [(a, b) for a in range(replicas[producer]) for b in range(replicas[consumer])]
        found += [Link(producer, a, consumer, b, tuple(interfaces)) for a, b in pairs]
    return found


def ports_of(
    plan: Plan,
    fragment: str,
    replica: int,
    channel: Callable[[Link], Channel],
    mailbox: Callable[[list[Link]], Mailbox],
) -> Ports:
    """The ports of one replica: `channel` gives its end of a link, `mailbox` its end of the mailbox behind several."""
    ports = Ports({}, {}, {}, {})
    boxes: dict[tuple[bool, str], list[Link]] = {}
    for interface in plan.interfaces:
        if interface.producer == fragment and interface.delivery.kind == "every":
            # Replicas beyond the first have nothing to add to a value that all of them share.
            ports.outgoing[interface.key] = []
    for link in links(plan):
        sends = (link.producer, link.source) == (fragment, replica)
        if not sends and (link.consumer, link.target) != (fragment, replica):
            continue
        if link.delivery.kind != "every":
            boxes.setdefault((sends, link.consumer if sends else link.producer), []).append(link)
            continue
        side = ports.outgoing if sends else ports.incoming
        side.setdefault(link.interfaces[0].key, []).append(channel(link))
    for (sends, other), behind in boxes.items():
        (ports.posts if sends else ports.pickups)[other] = mailbox(behind)
    return ports


def assign(
    plan: Plan,
    deployments: Sequence[Sequence[Deployment]],
    state: Sequence[Any],
    channel: Callable[[], Channel],
    mailbox: Callable[[Delivery], Mailbox],
) -> list[Assignment]:
    """One assignment per worker, all of them in this process. Afterwards both ends of every link are one object."""
    channels = {link.name: channel() for link in links(plan) if link.delivery.kind == "every"}
    boxes = {(i.producer, i.consumer): i.delivery for i in plan.interfaces if i.delivery.kind != "every"}
    mailboxes = {pair: mailbox(delivery) for pair, delivery in boxes.items()}

    return [
        Assignment(
            deployment,
            replica,
            ports_of(
                plan,
                program.fragment.name,
                replica,
                lambda link: channels[link.name],
                lambda behind: mailboxes[behind[0].producer, behind[0].consumer],
            ),
            hold_state(program, deployment, part_of_state(program, replica, state)),
        )
        for program, places in zip(plan.programs, deployments, strict=True)
        for replica, deployment in enumerate(places)
    ]


def connections(assignments: Sequence[Assignment]) -> dict[str, list[Channel | Mailbox]]:
    """All channels and mailboxes from one fragment to another, by `producer -> consumer`."""
    found: dict[str, list[Channel | Mailbox]] = {}
    for assignment in assignments:
        producer = assignment.deployment.schedule.program.fragment.name
        for (_, consumer), channels in assignment.ports.outgoing.items():
            found.setdefault(f"{producer} -> {consumer}", []).extend(channels)
        for consumer, box in assignment.ports.posts.items():
            found.setdefault(f"{producer} -> {consumer}", []).append(box)
    return {pair: channels for pair, channels in found.items() if channels}


def time_workers(plan: Plan, assignments: Sequence[Assignment], window: Window) -> list[Stopwatch]:
    """A stopwatch for every worker; from now on the ends of all channels note to it."""
    programs = {program.fragment.name: program for program in plan.programs}
    replicas = {name: program.replicas for name, program in programs.items()}
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
            pairs = _pairs(interface, replicas)
            for ends, side, fragment in (
                (ports.outgoing, 0, interface.producer),
                (ports.incoming, 1, interface.consumer),
            ):
                if fragment != name or interface.delivery.kind != "every":
                    continue
                own = [pair for pair in pairs if pair[side] == replica]
                ends[interface.key] = [
                    TimedChannel(
                        channel,
                        stopwatch,
                        interface,
                        f"{programs[interface.producer].worker(source)} -> "
                        f"{programs[interface.consumer].worker(target)}",
                    )
                    for channel, (source, target) in zip(ends[interface.key], own, strict=True)
                ]
        for boxes, side in ((ports.posts, "consumer"), (ports.pickups, "producer")):
            for peer, box in boxes.items():
                between = [i for i in plan.interfaces if getattr(i, side) == peer and name in (i.producer, i.consumer)]
                boxes[peer] = TimedMailbox(box, stopwatch, between)
    return stopwatches


def collect(plan: Plan, states: Sequence[tuple[Program, dict[int, Any]]], initial: Sequence[Any]) -> list[Any]:
    """The whole state from the workers' leaves; a leaf that nobody keeps is as it was."""
    leaves = list(initial)
    for i in range(len(leaves)):
        holders = [(program, kept[i]) for program, kept in states if i in kept]
        if not holders:
            continue
        program = holders[0][0]
        value = plan.graph.state_inputs[i]
        layout = program.layout(value)
        if program.replicas > 1 and isinstance(layout, Split):
            parts = [jax.device_put(leaf, jax.devices()[0]) for owner, leaf in holders if owner is program]
            leaf = joined(parts, layout)
        else:
            leaf = jax.device_put(holders[0][1], jax.devices()[0])
        leaves[i] = from_raw(leaf, plan.graph.state_inputs[i].dtype)
    return leaves


def _pairs(interface: Interface, replicas: dict[str, int]) -> list[tuple[int, int]]:
    """Which replica of the producer sends to which of the consumer."""
    sources, targets = replicas[interface.producer], replicas[interface.consumer]
    if interface.operator in (Operator.BROADCAST, Operator.SCATTER):
        return [(0, target) for target in range(targets)]
    if interface.operator in (Operator.GATHER, Operator.REDUCE):
        return [(source, 0) for source in range(sources)]
    if interface.operator == Operator.ALL_TO_ALL:
        return [(source, target) for source in range(sources) for target in range(targets)]
    return [(target if sources == targets else 0, target) for target in range(targets)]


def part_of_state(program: Program, replica: int, state: Sequence[Any]) -> dict[int, Any]:
    """The leaves that a replica keeps, its own part of those that are split; random keys as plain numbers."""
    found = {}
    for i in program.state:
        layout = program.layout(program.graph.state_inputs[i])
        leaf = to_raw(state[i])
        if program.replicas > 1 and isinstance(layout, Split):
            leaf = parts_of(leaf, layout, program.replicas)[replica]
        found[i] = leaf
    return found


def hold_state(program: Program, deployment: Deployment, leaves: dict[int, Any]) -> dict[int, Any]:
    """A worker's own copies of its leaves, because it will donate their buffers."""
    found = {}
    for i, leaf in leaves.items():
        place = deployment.held[program.graph.state_inputs[i].id].sharding
        found[i] = jax.device_put(jnp.copy(leaf), place)
    return found
