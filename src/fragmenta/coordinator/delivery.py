"""Checks on what asynchronous fragments may exchange."""

from collections.abc import Mapping

from fragmenta.errors import ConfigError
from fragmenta.graph import Graph, Instruction, Plan, Program, Recv, Send, Value
from fragmenta.graph.layout import Layout


def check_delivery(plan: Plan) -> None:
    """Reject deliveries that cannot work.

    Afterwards a value that is not delivered `every` crosses once per iteration, and there is no deadlock: of two
    asynchronous fragments one takes `any` and the other `latest`.
    """
    for interface in plan.interfaces:
        if interface.times > 1 and not interface.delivery.waits:
            raise ConfigError(
                f"'{interface.name}' {interface.value} crosses from '{interface.producer}' to '{interface.consumer}' "
                f"{interface.times} times per iteration, so it must be delivered 'every', without lag"
            )
    for program in plan.programs:
        for delivery in program.fragment.delivery:
            if delivery.lag not in (0, 1) or (delivery.lag and delivery.kind != "every"):
                raise ConfigError(
                    f"fragment '{program.fragment.name}' takes '{delivery.kind}' from '{delivery.source}' with lag "
                    f"{delivery.lag}: lag must be 0 or 1, and 0 unless the kind is 'every'"
                )
            if delivery.kind != "every":
                _check_pair(plan, program, plan[delivery.source])


def check_parts(plan: Plan, full_graph: Graph, split_state: Mapping[int, Layout]) -> None:
    """Reject state that cannot be updated from one replica's environments at a time.

    Afterwards a fragment that takes `any` keeps no state per environment, and free-running replicas do not draw the
    same random numbers.
    """
    for program in plan.programs:
        for i in program.state:
            value, name = program.graph.state_inputs[i], plan.graph.state_names[i]
            differs = value.shape != full_graph.state_inputs[i].shape
            if differs and (program.fragment.replicas == 1 or value.id not in split_state):
                other = next(p for p in plan.programs if p is not program)
                raise ConfigError(
                    f"fragment '{program.fragment.name}' takes data from one replica of '{other.fragment.name}' at a "
                    f"time but keeps '{name}' for all environments: this algorithm cannot run under distribution "
                    f"policy '{plan.policy}'"
                )
            if program.fragment.replicas > 1 and not differs and str(value.dtype).startswith("key<"):
                raise ConfigError(
                    f"'{name}' is one random key for all environments, and the replicas of '{program.fragment.name}' "
                    f"run asynchronously, so all of them would draw the same numbers from it: keep one key per "
                    f"environment, as fragmenta.rl.keys_by_index makes them, or choose a synchronous distribution "
                    f"policy"
                )

    shapes = {v.id: v.shape for v in _values(full_graph)}
    for interface in plan.interfaces:
        value = interface.value
        if interface.delivery.kind == "latest" and shapes.get(value.id, value.shape) != value.shape:
            raise ConfigError(
                f"'{interface.name}' {value} goes from '{interface.producer}' to '{interface.consumer}' and has "
                f"entries per environment, but not those of the receiving replica: this algorithm cannot run under "
                f"distribution policy '{plan.policy}'"
            )


def _values(graph: Graph) -> list[Value]:
    return [*graph.block.inputs, *(v for node in graph.block.walk() for v in node.outputs)]


def _check_pair(plan: Plan, program: Program, other: Program) -> None:
    one, two = program.fragment, other.fragment
    kinds = {one.delivery_from(two.name).kind, two.delivery_from(one.name).kind}
    if kinds != {"any", "latest"} or len(plan.programs) > 2:
        raise ConfigError(
            f"fragments '{one.name}' and '{two.name}' of distribution policy '{plan.policy}' cannot be asynchronous: "
            f"there must be exactly two fragments, of which one takes 'any' from the other, and that one 'latest'"
        )
    learner, actor = (program, other) if one.delivery_from(two.name).kind == "any" else (other, program)
    name = learner.fragment.name
    if learner.fragment.replicas > 1 or actor.together:
        which = name if learner.fragment.replicas > 1 else actor.fragment.name
        raise ConfigError(
            f"the replicas of fragment '{which}' run iterations in lockstep, so '{name}' cannot take their data in any "
            f"order: let them exchange values with '{name}' only, and give '{name}' one replica"
        )
    _check_order(plan, learner)


def _check_order(plan: Plan, learner: Program) -> None:
    """What the learner sends must not depend on what it receives in the same iteration: that would deadlock."""
    has_received = False
    for crossing in _top_level(learner):
        if isinstance(crossing, Recv):
            has_received = True
        elif has_received:
            value = f"'{crossing.interface.name}' {crossing.interface.value}"
            raise ConfigError(
                f"{value} goes to '{crossing.interface.consumer}' and depends on what that sends in the same "
                f"iteration, so both would wait forever: this algorithm cannot run under distribution policy "
                f"'{plan.policy}'"
            )


def _top_level(program: Program) -> list[Send | Recv]:
    instructions: tuple[Instruction, ...] = program.instructions
    return [instruction for instruction in instructions if isinstance(instruction, (Send, Recv))]
