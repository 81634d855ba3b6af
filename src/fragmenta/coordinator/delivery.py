"""Checks on what asynchronous fragments may exchange."""

import itertools
from collections.abc import Iterable, Mapping

from fragmenta.errors import ConfigError
from fragmenta.graph import Graph, Instruction, Plan, Program, Recv, Repeat, Send, Value
from fragmenta.graph.layout import Layout


def check_delivery(plan: Plan) -> None:
    """Reject deliveries that cannot work.

    Afterwards a value that is not delivered `every` crosses once per iteration, and there is no deadlock: asynchronous
    fragments are a chain, in which each takes `any` from the next, and the last takes `latest` from the first.
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
    takes_any = {p.fragment.name: d.source for p in plan.programs for d in p.fragment.delivery if d.kind == "any"}
    if takes_any or any(d.kind != "every" for p in plan.programs for d in p.fragment.delivery):
        _check_chain(plan, takes_any)


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


def _check_chain(plan: Plan, takes_any: dict[str, str]) -> None:
    chain = [name for name in takes_any if name not in takes_any.values()][:1]
    while chain and chain[-1] in takes_any and len(chain) < len(plan.programs):
        chain.append(takes_any[chain[-1]])
    kinds = {(chain[-1], chain[0]): "latest"} if chain else {}
    kinds |= dict.fromkeys(itertools.pairwise(chain), "any")
    replies = {(other, one) for one, other in itertools.pairwise(chain)}
    declared = {(p.fragment.name, d.source): d.kind for p in plan.programs for d in p.fragment.delivery}
    wrong = [pair for pair, kind in declared.items() if kinds.get(pair, "reply" if pair in replies else "") != kind]
    crossing = [(i.consumer, i.producer) for i in plan.interfaces if i.delivery.kind == "every"]
    names = ", ".join(f"'{program.fragment.name}'" for program in plan.programs)
    if len(chain) < len(plan.programs) or wrong or crossing or not kinds.keys() <= declared.keys():
        consumer, producer = next(iter([*wrong, *crossing]), (chain or [names])[0:1] * 2)
        raise ConfigError(
            f"fragments {names} of distribution policy '{plan.policy}' cannot be asynchronous (what '{consumer}' takes "
            f"from '{producer}'): the first must take 'any' from the second, that one 'any' from the next, if there is "
            f"one, and the last 'latest' from the first; what goes back to the one before is a 'reply'"
        )
    learner, *others = (plan[name] for name in chain)
    name = learner.fragment.name
    for program in (learner, *others):
        if program.together or (program is learner and program.fragment.replicas > 1):
            raise ConfigError(
                f"the replicas of fragment '{program.fragment.name}' run iterations in lockstep, so '{name}' cannot "
                f"take their data in any order: let them exchange values with '{name}' only, and give '{name}' one "
                f"replica"
            )
    _check_order(plan, learner)


def _check_order(plan: Plan, learner: Program) -> None:
    """What the learner sends must not depend on what it receives in the same iteration: that would deadlock."""
    has_received = False
    for crossing in _top_level(learner):
        if isinstance(crossing, Recv):
            has_received = True
        elif has_received and crossing.interface.delivery.kind == "latest":
            value = f"'{crossing.interface.name}' {crossing.interface.value}"
            raise ConfigError(
                f"{value} goes to '{crossing.interface.consumer}' and depends on what that sends in the same "
                f"iteration, so both would wait forever: this algorithm cannot run under distribution policy "
                f"'{plan.policy}'"
            )


def replies_last(instructions: Iterable[Instruction]) -> tuple[Instruction, ...]:
    """The same instructions, those that need a reply after all others.

    Afterwards everything that the reply may depend on is sent before it is waited for; ConfigError if that cannot be.
    """
    before: list[Instruction] = []
    after: list[Instruction] = []
    late_values: set[int] = set()
    for instruction in instructions:
        if isinstance(instruction, Recv):
            is_late = instruction.interface.delivery.kind == "reply"
            outputs: tuple[Value, ...] = (instruction.interface.value,)
        elif isinstance(instruction, Send):
            value, outputs = instruction.interface.value, ()
            if is_late := value.id in late_values:
                raise ConfigError(
                    f"'{instruction.interface.name}' {value} depends on a reply of '{instruction.interface.consumer}' "
                    f"and goes to it in the same iteration, so both would wait forever"
                )
        else:
            node = instruction.loop if isinstance(instruction, Repeat) else instruction.node
            is_late, outputs = any(v.id in late_values for v in node.inputs), node.outputs
        late_values.update(v.id for v in outputs if is_late)
        (after if is_late else before).append(instruction)
    return (*before, *after)


def _top_level(program: Program) -> list[Send | Recv]:
    instructions: tuple[Instruction, ...] = program.instructions
    return [instruction for instruction in instructions if isinstance(instruction, (Send, Recv))]
