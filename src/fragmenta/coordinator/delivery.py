"""What fragments that do not wait for each other may exchange."""

from fragmenta.errors import ConfigError
from fragmenta.graph import Instruction, Plan, Program, Recv, Send


def check_delivery(plan: Plan) -> None:
    """Refuse deliveries that cannot work.

    Afterwards what is not delivered `every` crosses once per iteration, whole, and no fragment waits for one that
    waits for it: of two fragments that drift, one takes `any` and the other `latest`.
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
                    f"fragment '{program.fragment.name}' takes '{delivery.kind}' of '{delivery.source}' with lag "
                    f"{delivery.lag}: lag is 0 or 1, and for 'every' only"
                )
            if delivery.kind != "every":
                _check_pair(plan, program, plan[delivery.source])


def _check_pair(plan: Plan, program: Program, other: Program) -> None:
    one, two = program.fragment, other.fragment
    kinds = {one.delivery_from(two.name).kind, two.delivery_from(one.name).kind}
    if kinds != {"any", "latest"} or len(plan.programs) > 2:
        raise ConfigError(
            f"fragments '{one.name}' and '{two.name}' of policy '{plan.policy}' cannot drift: of exactly two fragments "
            f"one must take 'any' of the other, and that one the 'latest'"
        )
    learner, actor = (program, other) if one.delivery_from(two.name).kind == "any" else (other, program)
    name = learner.fragment.name
    if learner.fragment.replicas > 1 or actor.together:
        which = name if learner.fragment.replicas > 1 else actor.fragment.name
        raise ConfigError(
            f"the replicas of fragment '{which}' go through iterations in step, so '{name}' cannot take them in any "
            f"order: let them talk to nobody but '{name}', and give that one replica"
        )
    whole = [plan.graph.state_names[i] for i in learner.state if learner.graph.state_inputs[i].id in learner.axes]
    if whole and actor.replicas > 1:
        raise ConfigError(
            f"fragment '{name}' takes one replica of '{actor.fragment.name}' at a time but keeps '{whole[0]}' for all "
            f"environments: this algorithm cannot run under policy '{plan.policy}'"
        )
    _check_order(plan, learner)


def _check_order(plan: Plan, learner: Program) -> None:
    """What goes out must not depend on what comes in: whoever waits for the first values would wait for ever."""
    arrived = False
    for crossing in _top_level(learner):
        if isinstance(crossing, Recv):
            arrived = True
        elif arrived or crossing.interface.axis is not None:
            value = f"'{crossing.interface.name}' {crossing.interface.value}"
            raise ConfigError(
                f"{value} goes to '{crossing.interface.consumer}' and is made per environment or from what comes from "
                f"there in the same iteration: this algorithm cannot run under policy '{plan.policy}'"
            )


def _top_level(program: Program) -> list[Send | Recv]:
    instructions: tuple[Instruction, ...] = program.instructions
    return [instruction for instruction in instructions if isinstance(instruction, (Send, Recv))]
