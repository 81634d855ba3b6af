"""Prepare a plan for an engine: compile every fragment, split the initial state, connect, and join the final state."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.graph import Delivery, Interface, Operator, Plan, Program
from fragmenta.worker.backends.xla import Site, from_raw, site, to_raw
from fragmenta.worker.channels.mailbox import Mailbox
from fragmenta.worker.channels.memory import Channel
from fragmenta.worker.deploy import Deployment, Ports, deploy
from fragmenta.worker.optimize import optimize
from fragmenta.worker.timeline import RecordedChannel, RecordedMailbox, Recorder, Window


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What one worker gets: a compiled fragment, which replica it is, its channels, its leaves of the state."""

    deployment: Deployment
    replica: int
    ports: Ports
    state: dict[int, Any]


def compile_plan(plan: Plan) -> list[list[Deployment]]:
    """Compile all fragments, several at a time: per program, one deployment per replica that runs apart."""
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
        built = dict(zip(wanted, pool.map(build, wanted), strict=True))
    return [[built[index, where] for where in places] for index, places in enumerate(sites)]


def assign(
    plan: Plan,
    deployments: Sequence[Sequence[Deployment]],
    state: Sequence[Any],
    channel: Callable[[], Channel],
    mailbox: Callable[[Delivery], Mailbox],
) -> list[Assignment]:
    """One assignment per worker. Afterwards every interface has a channel between each pair of replicas that use it,
    or shares one mailbox with all others between the two fragments if these do not wait for each other."""
    ports = {
        (program.fragment.name, replica): Ports({}, {}, {}, {})
        for program in plan.programs
        for replica in range(program.replicas)
    }
    replicas = {program.fragment.name: program.replicas for program in plan.programs}
    for interface in plan.interfaces:
        if interface.delivery.kind != "every":
            if interface.consumer not in ports[interface.producer, 0].posts:
                shared = mailbox(interface.delivery)
                for source in range(replicas[interface.producer]):
                    ports[interface.producer, source].posts[interface.consumer] = shared
                for target in range(replicas[interface.consumer]):
                    ports[interface.consumer, target].pickups[interface.producer] = shared
            continue
        for source, target in _pairs(interface, replicas):
            connection = channel()
            ports[interface.producer, source].outgoing.setdefault(interface.key, []).append(connection)
            ports[interface.consumer, target].incoming.setdefault(interface.key, []).append(connection)
        for source in range(replicas[interface.producer]):
            # Replicas beyond the first have nothing to add to a value that all of them share.
            ports[interface.producer, source].outgoing.setdefault(interface.key, [])
    return [
        Assignment(
            deployment, replica, ports[program.fragment.name, replica], _initial(program, deployment, replica, state)
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


def record(plan: Plan, assignments: Sequence[Assignment], window: Window) -> list[Recorder]:
    """A recorder for every worker; from now on the ends of all channels note to it."""
    replicas = {program.fragment.name: program.replicas for program in plan.programs}

    def worker(fragment: str, replica: int) -> str:
        return f"{fragment}[{replica}]" if replicas[fragment] > 1 else fragment

    recorders = []
    for assignment in assignments:
        name, replica, ports = (
            assignment.deployment.schedule.program.fragment.name,
            assignment.replica,
            assignment.ports,
        )
        recorder = Recorder(name, worker(name, replica), window, follows=name in plan.free_running)
        recorders.append(recorder)
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
                    RecordedChannel(
                        channel,
                        recorder,
                        interface,
                        f"{worker(interface.producer, source)} -> {worker(interface.consumer, target)}",
                    )
                    for channel, (source, target) in zip(ends[interface.key], own, strict=True)
                ]
        for boxes, side in ((ports.posts, "consumer"), (ports.pickups, "producer")):
            for peer, box in boxes.items():
                between = [i for i in plan.interfaces if getattr(i, side) == peer and name in (i.producer, i.consumer)]
                boxes[peer] = RecordedMailbox(box, recorder, between)
    return recorders


def collect(plan: Plan, states: Sequence[tuple[Program, dict[int, Any]]], initial: Sequence[Any]) -> list[Any]:
    """The whole state from the workers' leaves; a leaf that nobody keeps is as it was."""
    leaves = list(initial)
    for i in range(len(leaves)):
        holders = [(program, kept[i]) for program, kept in states if i in kept]
        if not holders:
            continue
        program = holders[0][0]
        axis = program.axes.get(plan.graph.state_inputs[i].id)
        if program.replicas > 1 and axis is not None:
            parts = [jax.device_put(leaf, jax.devices()[0]) for owner, leaf in holders if owner is program]
            leaf = jnp.concatenate(parts, axis)
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
    return [(target if sources == targets else 0, target) for target in range(targets)]


def _initial(program: Program, deployment: Deployment, replica: int, state: Sequence[Any]) -> dict[int, Any]:
    """A worker's own copies of its leaves, because it will donate their buffers."""
    found = {}
    for i in program.state:
        value = program.graph.state_inputs[i]
        axis = program.axes.get(value.id)
        leaf = to_raw(state[i])
        if program.replicas > 1 and axis is not None:
            leaf = jnp.split(leaf, program.replicas, axis)[replica]
        place = deployment.site.sharding(value.shape, axis if program.together else None)
        found[i] = jax.device_put(jnp.copy(leaf), place)
    return found
