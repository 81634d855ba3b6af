"""Turn a fragment's program into steps: as few compiled segments as its communication allows.

Everything between two communications or host stages becomes one segment. A loop without any is compiled as a whole. A
loop with some runs in Python; its segments slice the inputs and stack the outputs, except outputs already on the host.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.coordinator.partition.parts import Replica
from fragmenta.graph import Call, Compute, Instruction, Interface, Program, Recv, Repeat, Send, Value
from fragmenta.tracing.jaxprs import Origin, blank, size_of
from fragmenta.worker.ahead import draw_ahead
from fragmenta.worker.crossings import Crossings
from fragmenta.worker.steps import (
    REPLICA,
    Host,
    Item,
    Key,
    Operation,
    Rounds,
    Schedule,
    Segment,
    Step,
    join_operations,
    reads,
    writes,
)

LARGE = 1 << 20
"""Bytes from which on a loop in Python does not copy a carry in every round; a call costs more than a smaller copy."""

UNROLLED = 8_000
"""Most primitives of an unrolled round of a compiled loop: each takes time to compile. A step of Brax has 15,000."""


def optimize(program: Program, replicas: dict[str, int], unroll: int = 1) -> Schedule:
    """The schedule of a program: no two segments are adjacent, and every Python loop communicates or has host stages.

    `replicas` is the number of workers of each fragment; `unroll` the largest unroll factor of compiled loops.
    """
    builder = _Builder(program, replicas, unroll)
    items = builder.items(program.instructions, {})
    graph = program.graph
    end: set[Key] = {graph.state_outputs[i].id for i in program.state}
    end |= {graph.metrics[i].id for i in program.metrics}
    # A carry that a loop does not change ends in the buffer that it started in, which must not be donated.
    starts = {start for item in items if isinstance(item, Rounds) for start, _, _, _ in item.carried}
    donatable = _donatable(program)
    steps = join_operations(items, end, donatable - starts)
    return Schedule(program, _without_copies(steps, end, donatable), builder.shapes)


class _Builder:
    """Flattens instructions into operations and exchanges, and replaces loop constants by the outer values."""

    def __init__(self, program: Program, replicas: dict[str, int], unroll: int) -> None:
        self.program, self.unroll = program, unroll
        self.shapes: dict[Key, Value] = {value.id: value for value in program.graph.state_inputs}
        self.shapes[REPLICA] = Value(-1, (), jnp.dtype(jnp.int32))
        self.crossings = Crossings(program, replicas, self.shapes)

    def items(self, instructions: Iterable[Instruction], alias: dict[int, Key]) -> list[Item]:
        items: list[Item] = []
        for instruction in instructions:
            if isinstance(instruction, Compute):
                items.append(self._run(instruction, alias))
            elif isinstance(instruction, Send):
                items += self.crossings.send(instruction.interface, alias)
            elif isinstance(instruction, Recv):
                items += self.crossings.recv(instruction.interface)
            elif not instruction.loop.length:
                items.append(self._no_rounds(instruction, alias))
            elif _interrupted(instruction.body):
                items += self._rounds(instruction, alias)
            else:
                items.append(self._compiled_loop(instruction, alias))
        return items

    def _run(self, run: Compute, alias: dict[int, Key]) -> Operation | Host:
        node = run.node
        self._remember(node.outputs)
        inputs = tuple(alias.get(v.id, v.id) for v in node.inputs)
        label = node.stage if isinstance(node, Call) else ""
        if isinstance(node, Call) and node.host:
            return Host(inputs, tuple(v.id for v in node.outputs), node.host, label)
        effects = isinstance(node, Call) and node.has_effects
        outputs = tuple(v.id for v in node.outputs)
        if node.share is None:
            return Operation(inputs, outputs, node.apply, label, effects)
        function, uses_index = node.apply, node.share.uses_index

        def apply(*arrays: Any) -> Sequence[Any]:
            replica = Replica(self.program.parts, arrays[0] if uses_index else None, self.program.fragment.axis)
            return function(replica, *arrays[uses_index:])

        return Operation((REPLICA,) * uses_index + inputs, outputs, apply, label, effects, bool(node.share.exchanges))

    def _rounds(self, repeat: Repeat, alias: dict[int, Key]) -> list[Item]:
        loop = repeat.loop
        counter: Key = ("round", loop.id)
        self.shapes[counter] = Value(-1, (), jnp.dtype(jnp.int32))
        inside = self._constants(repeat, alias)
        self._remember(loop.carry_params)
        self._remember(loop.finals)
        slices = []
        for i in repeat.sequences:
            source, target = loop.sequences[i].id, loop.slice_params[i]
            self._remember((target,))
            slices.append(Operation((alias.get(source, source), counter), (target.id,), _take_slice))
        body = self.items(repeat.body, inside)
        host_keys = {key for item in body if isinstance(item, Host) for key in item.outputs}
        pairs = zip(loop.carry_params, loop.carry_results, strict=True)
        host_keys |= {param.id for param, result in pairs if result.id in host_keys}
        host_keys |= {key for item in body if isinstance(item, Host) for key in item.inputs}
        buffers: list[Key] = []
        on_host: list[tuple[Key, Key]] = []
        for i in repeat.stacked:
            result, stack = loop.slice_results[i], loop.stacked[i]
            self._remember((stack,))
            key = inside.get(result.id, result.id)
            if key in host_keys:
                on_host.append((stack.id, key))
                continue
            buffers.append(stack.id)
            store = Operation((stack.id, key, counter), (stack.id,), _put_slice)
            body.insert(_first_use(body, key), store)
        carried = tuple(
            (
                alias.get(loop.carries[i].id, loop.carries[i].id),
                loop.carry_params[i].id,
                inside.get(loop.carry_results[i].id, loop.carry_results[i].id),
                loop.finals[i].id,
            )
            for i in repeat.carries
        )
        after = {result for _, _, result, _ in carried} | set(buffers) | {value for _, value in on_host}
        large = [carry for carry in carried if self.shapes[carry[1]].bytes >= LARGE]
        donated = _donatable_carries(body, large, {value for _, value in on_host} | {carry[0] for carry in carried})
        steps = join_operations([*slices, *body], after, {*buffers, *donated})
        before: list[Operation] = []
        if not self.program.together:  # a segment of merged replicas sees one replica's part only
            changing = {param for _, param, _, _ in carried} | set(buffers)
            before, steps = draw_ahead(steps, changing, counter, loop.length, self.shapes)
        rounds = Rounds(
            loop.length, loop.reverse, counter, carried, tuple(buffers), steps, tuple(on_host), donated, donated
        )
        return [*before, rounds]

    def _no_rounds(self, repeat: Repeat, alias: dict[int, Key]) -> Operation:
        """A loop of length 0: carries stay as they are, and nothing is stacked."""
        loop = repeat.loop
        stacked = [loop.stacked[i] for i in repeat.stacked]
        outputs = [*(loop.finals[i] for i in repeat.carries), *stacked]
        self._remember(outputs)

        def apply(*carries: Any) -> list[Any]:
            return [*carries, *(blank(value.shape, value.dtype) for value in stacked)]

        starts = tuple(alias.get(loop.carries[i].id, loop.carries[i].id) for i in repeat.carries)
        return Operation(starts, tuple(value.id for value in outputs), apply)

    def _compiled_loop(self, repeat: Repeat, alias: dict[int, Key]) -> Operation:
        """A loop without communication as one operation: a scan over this fragment's part of the body."""
        loop = repeat.loop
        inside = self._constants(repeat, alias)
        body = self.items(repeat.body, inside)
        operations = [item for item in body if isinstance(item, Operation)]
        params = [loop.carry_params[i].id for i in repeat.carries] + [loop.slice_params[i].id for i in repeat.sequences]
        inner_keys = {*params, *(key for op in operations for key in op.outputs)}
        results = [loop.carry_results[i].id for i in repeat.carries] + [
            loop.slice_results[i].id for i in repeat.stacked
        ]
        result_keys = [inside.get(key, key) for key in results]
        read_keys = [key for op in operations for key in op.inputs] + result_keys
        constants = list(dict.fromkeys(key for key in read_keys if key not in inner_keys))
        starts = [alias.get(loop.carries[i].id, loop.carries[i].id) for i in repeat.carries]
        sequences = [alias.get(loop.sequences[i].id, loop.sequences[i].id) for i in repeat.sequences]
        outputs = [loop.finals[i] for i in repeat.carries] + [loop.stacked[i] for i in repeat.stacked]
        self._remember(outputs)
        kernel = Segment(tuple(operations), (*constants, *params), tuple(result_keys), ())
        count, unroll = len(starts), max(1, min(self.unroll, UNROLLED // max(1, _size(repeat.body))))

        def apply(*arrays: Any) -> list[Any]:
            fixed, carries = arrays[: len(constants)], arrays[len(constants) : len(constants) + count]

            def body(carry: tuple[Any, ...], slices: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
                outputs = kernel(*fixed, *carry, *slices)
                return outputs[:count], outputs[count:]

            rest = arrays[len(constants) + count :]
            last, stacked = jax.lax.scan(body, carries, rest, loop.length, loop.reverse, unroll=unroll)
            return [*last, *stacked]

        labels = ", ".join(op.label for op in operations if op.label)
        label = f"loop x{loop.length}({labels})" if labels else ""
        effects = any(op.effects for op in operations)
        inputs = (*constants, *starts, *sequences)
        return Operation(inputs, tuple(v.id for v in outputs), apply, label, effects, kernel.has_exchanges)

    def _constants(self, repeat: Repeat, alias: dict[int, Key]) -> dict[int, Key]:
        loop = repeat.loop
        params = zip(loop.body.inputs, loop.constants, strict=False)
        return alias | {inner.id: alias.get(outer.id, outer.id) for inner, outer in params}

    def _remember(self, values: Iterable[Value]) -> None:
        self.shapes.update({value.id: value for value in values})


def _take_slice(sequence: jax.Array, index: jax.Array) -> list[jax.Array]:
    return [jax.lax.dynamic_index_in_dim(sequence, index, keepdims=False)]


def _put_slice(stack: jax.Array, value: jax.Array, index: jax.Array) -> list[jax.Array]:
    return [jax.lax.dynamic_update_index_in_dim(stack, value, index, 0)]


def _interrupted(instructions: Iterable[Instruction]) -> bool:
    """Whether any instruction cannot be part of a compiled program."""
    return any(
        isinstance(i, (Send, Recv))
        or (isinstance(i, Compute) and isinstance(i.node, Call) and i.node.host is not None)
        or (isinstance(i, Repeat) and _interrupted(i.body))
        for i in instructions
    )


def _size(instructions: Iterable[Instruction]) -> int:
    """How many primitives one round of a loop has."""
    nodes = [i.node for i in instructions if isinstance(i, Compute)]
    size = sum(size_of(node.origin.equation) for node in nodes if isinstance(node.origin, Origin))
    return size + sum(_size(i.body) for i in instructions if isinstance(i, Repeat))


def _first_use(items: Sequence[Item], key: Key) -> int:
    """The index right after the item that writes the value, so that its use shares that item's segment."""
    for i, item in enumerate(items):
        if key in writes(item):
            return i + 1
    return 0


def _donatable(program: Program) -> set[Key]:
    """State whose buffers may be donated: never sent, never reported as a metric, no two leaves in one buffer."""
    graph = program.graph
    crossing = {i.value.id for i in _interfaces(program.instructions)} | {graph.metrics[i].id for i in program.metrics}
    results = [graph.state_outputs[i].id for i in program.state]
    return {
        graph.state_inputs[i].id
        for i in program.state
        if not {graph.state_inputs[i].id, graph.state_outputs[i].id} & crossing
        and results.count(graph.state_outputs[i].id) == 1
        and graph.state_outputs[i].id not in {graph.state_inputs[j].id for j in program.state}
    }


def _donatable_carries(
    body: Sequence[Item], carried: Sequence[tuple[Key, Key, Key, Key]], held: set[Key]
) -> tuple[Key, ...]:
    """The parameters of carries whose buffers only this loop has: segments write them and nothing else holds them, as
    it does the values in `held`."""
    computed = {key for item in body if isinstance(item, Operation) for key in item.outputs}
    elsewhere = {key for item in body if not isinstance(item, Operation) for key in reads(item) | writes(item)}
    results = [result for _, _, result, _ in carried]
    return tuple(
        param
        for _, param, result, _ in carried
        if result in computed and results.count(result) == 1 and not {param, result} & (elsewhere | held)
    )


def _without_copies(steps: Sequence[Step], live: set[Key], donatable: set[Key]) -> tuple[Step, ...]:
    """The same steps, but loops start with the state itself where nothing needs it afterwards, not with a copy."""
    result: list[Step] = []
    later = set(live)
    for step in reversed(steps):
        if isinstance(step, Rounds):
            starts = [start for start, _, _, _ in step.carried]
            inside = {key for inner in step.body for key in reads(inner)}
            state_itself = {
                param
                for start, param, _, _ in step.carried
                if start in donatable and start not in later | inside and starts.count(start) == 1
            }
            step = dataclasses.replace(step, copied=tuple(key for key in step.copied if key not in state_itself))
        later |= reads(step)
        result.append(step)
    return tuple(reversed(result))


def _interfaces(instructions: Iterable[Instruction]) -> Iterable[Interface]:
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            yield from _interfaces(instruction.body)
        elif not isinstance(instruction, Compute):
            yield instruction.interface
