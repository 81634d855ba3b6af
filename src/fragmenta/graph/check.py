"""Invariants of graphs and plans: verifies the postconditions of the passes."""

from collections.abc import Iterable, Iterator

from fragmenta.graph.ir import Block, Call, Graph, Loop
from fragmenta.graph.program import Compute, Instruction, Plan, Recv, Repeat, Send


def check_graph(graph: Graph) -> None:
    """Every value is defined once, before it is used; every stage is a Call; the state keeps its shapes."""
    defined: set[int] = set()
    _check_block(graph.block, defined)
    calls = {name for node in graph.block.walk() if isinstance(node, Call) for name in (*node.holds, *node.inner)}
    assert calls == set(graph.stages), f"stages {graph.stages} but calls to {calls}"
    for before, after in zip(graph.state_inputs, graph.state_outputs, strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)


def check_plan(plan: Plan) -> None:
    """Sends and receives pair up in order, programs use only values that they have, no state or metric is lost."""
    fragments = [program.fragment.name for program in plan.programs]
    for one in fragments:
        for other in fragments:
            sent = [i.key for i in _crossings(plan[one].instructions, Send) if i.consumer == other]
            received = [i.key for i in _crossings(plan[other].instructions, Recv) if i.producer == one]
            assert sent == received, f"{one} sends {sent}, {other} receives {received}"
    run_counts: dict[int, int] = {}
    for program in plan.programs:
        graph = program.graph
        known = {graph.state_inputs[i].id for i in program.state}
        _check_uses(program.instructions, known, program.fragment.name)
        for i in program.state:
            assert graph.state_outputs[i].id in known, f"{program.fragment.name} loses state {graph.state_names[i]}"
        for i in program.metrics:
            assert graph.metrics[i].id in known, f"{program.fragment.name} has no metric {graph.metric_names[i]}"
        for run in _runs(program.instructions):
            if isinstance(run.node, Call):
                run_counts[run.node.id] = run_counts.get(run.node.id, 0) + 1
                assert set(run.node.holds) <= set(program.fragment.stages)
    assert set(run_counts.values()) <= {1}, "a stage runs in two fragments"
    kept_leaves = {i for program in plan.programs for i in program.state}
    changed_leaves = {
        i for i, (a, b) in enumerate(zip(plan.graph.state_inputs, plan.graph.state_outputs, strict=True)) if a is not b
    }
    assert changed_leaves <= kept_leaves, (
        f"no fragment keeps {[plan.graph.state_names[i] for i in changed_leaves - kept_leaves]}"
    )
    reported_metrics = [i for program in plan.programs for i in program.metrics]
    assert sorted(reported_metrics) == list(range(len(plan.graph.metrics))), "a metric is reported twice or never"


def _check_block(block: Block, defined: set[int]) -> None:
    def define(values: Iterable) -> None:
        for value in values:
            assert value.id not in defined, f"value {value.id} is defined twice"
            defined.add(value.id)

    define(block.inputs)
    for node in block.nodes:
        assert all(value.id in defined for value in node.inputs), f"{node} uses a value before it is defined"
        if isinstance(node, Loop):
            _check_block(node.body, defined)
        define(node.outputs)
    assert all(value.id in defined for value in block.outputs)


def _check_uses(instructions: Iterable[Instruction], known: set[int], fragment: str) -> None:
    for instruction in instructions:
        if isinstance(instruction, Compute):
            missing = [v.id for v in instruction.node.inputs if v.id not in known]
            assert not missing, f"{fragment} runs {instruction.node} without {missing}"
            known.update(v.id for v in instruction.node.outputs)
        elif isinstance(instruction, Send):
            assert instruction.interface.value.id in known, f"{fragment} sends a value that it does not have"
        elif isinstance(instruction, Recv):
            known.add(instruction.interface.value.id)
        else:
            _check_repeat(instruction, known, fragment)


def _check_repeat(repeat: Repeat, known: set[int], fragment: str) -> None:
    loop = repeat.loop
    inside = set(known)
    for param, outer in zip(loop.body.inputs, loop.constants, strict=False):
        if outer.id in known:
            inside.add(param.id)
    for i in repeat.carries:
        assert loop.carries[i].id in known, f"{fragment} starts a loop without a carry"
        inside.add(loop.carry_params[i].id)
    for i in repeat.sequences:
        assert loop.sequences[i].id in known, f"{fragment} starts a loop without a sequence"
        inside.add(loop.slice_params[i].id)
    _check_uses(repeat.body, inside, fragment)
    for i in repeat.carries:
        assert loop.carry_results[i].id in inside, f"{fragment} loses a carry"
        known.add(loop.finals[i].id)
    for i in repeat.stacked:
        assert loop.slice_results[i].id in inside, f"{fragment} stacks a value that it does not have"
        known.add(loop.stacked[i].id)


def _crossings(instructions: Iterable[Instruction], kind: type) -> Iterator:
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            yield from _crossings(instruction.body, kind)
        elif isinstance(instruction, (Send, Recv)) and isinstance(instruction, kind):
            yield instruction.interface


def _runs(instructions: Iterable[Instruction]) -> Iterator[Compute]:
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            yield from _runs(instruction.body)
        elif isinstance(instruction, Compute):
            yield instruction
