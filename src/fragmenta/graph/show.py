"""Listings and diagrams of graphs and plans."""

from collections.abc import Iterable

from fragmenta.graph.exchange import Exchange
from fragmenta.graph.fragment import Delivery
from fragmenta.graph.ir import Block, Call, Graph, Loop, Value
from fragmenta.graph.price import prices, repeated_share, whole_stages
from fragmenta.graph.program import (
    Compute,
    Instruction,
    Interface,
    Operator,
    Plan,
    Program,
    Recv,
    Repeat,
    Send,
    group_exchanges,
)
from fragmenta.graph.words import byte_text
from fragmenta.profiling.timings import InterfaceTime, Timings, bottleneck, busiest, busy_share, ms_text, waiting

INDENT = "  "
NEWLINE = "<br/>"
"""Inside a caption of a Mermaid flowchart."""


def show_graph(graph: Graph) -> str:
    """The stages and loops of a graph in order, with the outputs of stages; glue is left out."""
    lines = [f"graph of {', '.join(graph.stages)}; {graph.sizes['envs']} environments"]
    lines += _show_block(graph, graph.block, 1)
    lines.append(f"{INDENT}metrics: {', '.join(graph.metric_names)}")
    return "\n".join(lines)


def show_plan(plan: Plan, timings: Timings | None = None) -> str:
    """The listing of every fragment, and the bytes that cross per iteration; with timings, also the measurements."""
    total = sum(interface.bytes_per_iteration for interface in plan.interfaces)
    among_bytes = sum(c.bytes_per_iteration for program in plan.programs for c in program.collectives())
    width = max(len(_title(program)) for program in plan.programs) + 2
    among_text = f", {byte_text(among_bytes)} among replicas" if among_bytes else ""
    lines = [f"distribution policy {plan.policy}: {byte_text(total)} cross per iteration{among_text}"]
    lines += [_show_program(program, width, timings) for program in plan.programs]
    lines += [f"cost of replicas: {price}" for price in prices(plan)]
    if timings:
        lines.append(f"measured: {bottleneck(timings)}")
    return "\n".join(lines)


def show_program(program: Program) -> str:
    """The instructions of one fragment in order."""
    return _show_program(program, len(_title(program)) + 2)


def to_mermaid(plan: Plan, timings: Timings | None = None) -> str:
    """The plan as a Mermaid flowchart: a box per fragment, an arrow per pair of fragments and operator."""
    lines = ["flowchart LR"]
    for program in plan.programs:
        lines.append(f'{INDENT}{_box(program.fragment.name)}["{_caption(program, timings)}"]')
    for (producer, consumer, operator), crossing in _arrows(plan):
        text = _arrow_text(operator, crossing, timings)
        lines.append(f'{INDENT}{_box(producer)} -- "{text}" --> {_box(consumer)}')
    if timings and (name := busiest(timings)):
        lines.append(f"{INDENT}%% {bottleneck(timings)}")
        lines.append(f"{INDENT}style {_box(name)} stroke:#c00,stroke-width:3px")
    return "\n".join(lines) + "\n"


def _show_block(graph: Graph, block: Block, depth: int) -> list[str]:
    lines = []
    for node in block.nodes:
        if isinstance(node, Call):
            inside = f" (holds {', '.join(node.inner)})" if node.inner else ""
            outputs = ", ".join(_label(graph, v) for v in node.outputs[:4])
            more = f", and {len(node.outputs) - 4} more" if len(node.outputs) > 4 else ""
            lines.append(f"{INDENT * depth}{node.stage}{inside} -> {outputs}{more}")
        elif isinstance(node, Loop):
            lines.append(f"{INDENT * depth}loop x{node.length}:")
            lines += _show_block(graph, node.body, depth + 1)
    return lines


def _label(graph: Graph, value: Value) -> str:
    name = graph.names.get(value.id)
    return f"{name} {value}" if name else str(value)


def _title(program: Program) -> str:
    fragment = program.fragment
    count = f" x{fragment.replicas}" if fragment.replicas > 1 else ""
    return fragment.name + count


def _show_program(program: Program, width: int, timings: Timings | None = None) -> str:
    lines = _show_instructions(program, program.instructions, timings)
    reports = f", reports {len(program.metrics)} metrics" if program.metrics else ""
    lines.append(f"keeps {len(program.state)} leaves of the state{reports}")
    if timings:
        lines += _measured(program, timings)
    if program.together:
        mode = "as one program" if program.replicas == 1 else "in separate processes"
        lines.insert(0, f"{program.fragment.replicas} replicas {mode}, {_overhead_text(program)}")
    head = _title(program).ljust(width)
    return "\n".join((head if i == 0 else " " * width) + line for i, line in enumerate(lines))


def _overhead_text(program: Program) -> str:
    """The overhead of replicas over a fragment without replicas."""
    gathers = any(e.kind == "gather" for e in program.exchanges())
    text = f"{'gathering' if gathers else 'gathering nothing'}, {repeated_share(program):.1%} of the work repeated"
    stages = whole_stages(program)
    return text + (f"; every replica computes all of {', '.join(stages)}" if stages else "")


def _show_instructions(
    program: Program, instructions: Iterable[Instruction], timings: Timings | None = None
) -> list[str]:
    lines: list[str] = []
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            inside = _show_instructions(program, instruction.body, timings)
            if inside:
                lines.append(f"loop x{instruction.loop.length}:  {inside[0]}")
                lines += [" " * len(f"loop x{instruction.loop.length}:  ") + line for line in inside[1:]]
        elif isinstance(instruction, Compute):
            if isinstance(instruction.node, Call):
                lines.append(instruction.node.stage)
            if instruction.node.share:
                lines += _exchange_lines(instruction.node.share.exchanges, program.fragment.replicas)
        else:
            lines.append(_crossing(instruction, timings))
    return lines


def _crossing(instruction: Send | Recv, timings: Timings | None) -> str:
    interface = instruction.interface
    if isinstance(instruction, Send):
        verb, peer = "send", f"-> {interface.consumer}"
    else:
        verb, peer = "recv", f"<- {interface.producer}"
    operator = interface.operator.value + delivery_text(interface.delivery)
    name = f"{interface.name} " if interface.name else ""
    size = byte_text(interface.bytes_per_iteration)
    for time in _times_of([interface], timings):
        size += f"; measured {byte_text(time.bytes)}"
        size += "" if isinstance(instruction, Send) else f", wait {ms_text(time.median_wait_ms)}"
    return f"{verb} {name}{interface.value} {peer}  [{operator}, {size}]"


def _times_of(interfaces: Iterable[Interface], timings: Timings | None) -> list[InterfaceTime]:
    keys = {(i.producer, i.consumer, i.value.id) for i in interfaces}
    return [i for i in timings.interfaces if (i.producer, i.consumer, i.value) in keys] if timings else []


def _measured(program: Program, timings: Timings) -> list[str]:
    """Where a fragment's time goes, averaged over its replicas, and the time of each of its segments."""
    name = program.fragment.name
    workers = timings.of(name)
    if not workers:
        return ["measured: no whole iteration"]
    waits = "".join(f", waits {ms_text(ms)} for {peer}" for peer, ms in waiting(workers).items())
    total = sum(worker.iteration_ms for worker in workers) / len(workers)
    place = sum(worker.place_ms for worker in workers) / len(workers)
    placing = f", places values {ms_text(place)}" if place else ""
    lines = [f"measured: {ms_text(total)} per iteration, busy {busy_share(workers):.0%}{waits}{placing}"]
    for segment in timings.segments:
        if segment.fragment == name:
            count_text = f", x{segment.times:.0f}" if segment.times > 1 else ""
            lines.append(f"  {segment.label}: {ms_text(segment.median_ms)}{count_text}")
    return lines


def _exchange_lines(exchanges: Iterable[Exchange], replicas: int) -> list[str]:
    """One line per operator by which replicas exchange values for a node."""
    lines = []
    for collective in group_exchanges(exchanges, replicas):
        values = f"{collective.values} values" if collective.values > 1 else "1 value"
        count_text = f" x{collective.times}" if collective.times > 1 else ""
        size = byte_text(collective.bytes_per_iteration)
        lines.append(f"  among replicas: {values}{count_text}  [{collective.operator.value}, {size}]")
    return lines


def delivery_text(delivery: Delivery) -> str:
    """How values are delivered, if not `every`."""
    if delivery.waits:
        return ""
    bound = "" if delivery.max_lag is None else f", at most {delivery.max_lag} behind"
    return ", one behind" if delivery.lag else f", {delivery.kind}{bound}"


def _caption(program: Program, timings: Timings | None) -> str:
    fragment = program.fragment
    devices = ", ".join(sorted(set(fragment.devices)))
    lines = [_title(program), ", ".join(fragment.stages), devices]
    for c in program.collectives():
        lines.append(f"{c.operator.value} among replicas: {byte_text(c.bytes_per_iteration)}")
    if timings:
        lines += [line.strip() for line in _measured(program, timings)]
    return NEWLINE.join(lines)


def _arrows(plan: Plan) -> list[tuple[tuple[str, str, Operator], list[Interface]]]:
    groups: dict[tuple[str, str, Operator], list[Interface]] = {}
    for interface in plan.interfaces:
        groups.setdefault((interface.producer, interface.consumer, interface.operator), []).append(interface)
    return list(groups.items())


def _arrow_text(operator: Operator, interfaces: list[Interface], timings: Timings | None) -> str:
    names = list(dict.fromkeys(interface.name or str(interface.value) for interface in interfaces))
    names_text = ", ".join(names[:4]) + (f", +{len(names) - 4}" if len(names) > 4 else "")
    total = byte_text(sum(interface.bytes_per_iteration for interface in interfaces))
    count = max(interface.times for interface in interfaces)
    operator_text = operator.value + delivery_text(interfaces[0].delivery)
    text = f"{operator_text}: {names_text}{NEWLINE}{total} per iteration" + (f", x{count}" if count > 1 else "")
    if times := _times_of(interfaces, timings):
        size, wait = sum(i.bytes for i in times), max(i.median_wait_ms for i in times)
        text += f"{NEWLINE}measured {byte_text(size)}, longest wait {ms_text(wait)}"
    return text


def _box(name: str) -> str:
    return name.replace("+", "_")
