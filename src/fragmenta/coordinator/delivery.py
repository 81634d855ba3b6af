"""What fragments that do not wait for each other may exchange."""

from collections.abc import Mapping

from fragmenta.errors import ConfigError
from fragmenta.graph import Graph, Instruction, Plan, Program, Recv, Send, Value
from fragmenta.graph.layout import Layout


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


def check_parts(plan: Plan, whole: Graph, held: Mapping[int, Layout]) -> None:
    """Refuse state that one part of the environments at a time cannot stand for.

    Afterwards whoever takes `any` keeps nothing per environment, and replicas that run freely do not draw the same
    random numbers.
    """
    for program in plan.programs:
        for i in program.state:
            value, name = program.graph.state_inputs[i], plan.graph.state_names[i]
            differs = value.shape != whole.state_inputs[i].shape
            if differs and (program.fragment.replicas == 1 or value.id not in held):
                other = next(p for p in plan.programs if p is not program)
                raise ConfigError(
                    f"fragment '{program.fragment.name}' takes one replica of '{other.fragment.name}' at a time but "
                    f"keeps '{name}' for all environments: this algorithm cannot run under policy '{plan.policy}'"
                )
            if program.fragment.replicas > 1 and not differs and str(value.dtype).startswith("key<"):
                raise ConfigError(
                    f"'{name}' is one random key for all environments, and the replicas of '{program.fragment.name}' "
                    f"do not wait for each other, so each would draw the same numbers from it: keep one key per "
                    f"environment, as fragmenta.rl.keys_by_index makes them, or choose a synchronous policy"
                )

    shapes = {v.id: v.shape for v in _values(whole)}
    for interface in plan.interfaces:
        value = interface.value
        if interface.delivery.kind == "latest" and shapes.get(value.id, value.shape) != value.shape:
            raise ConfigError(
                f"'{interface.name}' {value} goes from '{interface.producer}' to '{interface.consumer}' and is made "
                f"per environment, but not for those of one replica: this algorithm cannot run under '{plan.policy}'"
            )


def _values(graph: Graph) -> list[Value]:
    return [*graph.block.inputs, *(v for node in graph.block.walk() for v in node.outputs)]


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
    _check_order(plan, learner)


def _check_order(plan: Plan, learner: Program) -> None:
    """What goes out must not depend on what comes in: whoever waits for the first values would wait for ever."""
    arrived = False
    for crossing in _top_level(learner):
        if isinstance(crossing, Recv):
            arrived = True
        elif arrived:
            value = f"'{crossing.interface.name}' {crossing.interface.value}"
            raise ConfigError(
                f"{value} goes to '{crossing.interface.consumer}' and is made from what comes from there in the same "
                f"iteration: this algorithm cannot run under policy '{plan.policy}'"
            )


def _top_level(program: Program) -> list[Send | Recv]:
    instructions: tuple[Instruction, ...] = program.instructions
    return [instruction for instruction in instructions if isinstance(instruction, (Send, Recv))]
