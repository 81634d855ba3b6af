"""The steps that a worker executes.

steps ::= Segment (compiled) | Host (run in Python) | Put (send) | Take (receive)
        | Rounds (a Python loop that contains any of the last three)
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from fragmenta.graph import Interface, Program, Value
from fragmenta.profiling.timeline import Span

Key = int | tuple[int, int] | tuple[str, int]
"""A value, one replica's part of a value, or (named) a loop counter or random bits drawn before a loop."""
REPLICA: Key = ("replica", 0)
"""The index of the replica."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """A computation inside a segment."""

    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    apply: Callable[..., Sequence[Any]]
    label: str = ""
    effects: bool = False
    has_exchanges: bool = False
    """Whether replicas exchange values in it."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """Operations that are compiled together."""

    operations: tuple[Operation, ...]
    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    donated: tuple[int, ...]
    _traced: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def has_exchanges(self) -> bool:
        """Whether replicas exchange values in it."""
        return any(op.has_exchanges for op in self.operations)

    @property
    def label(self) -> str:
        """The stages in it."""
        return ", ".join(op.label for op in self.operations if op.label) or "glue"

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """Compute the outputs from the inputs, as plain JAX."""
        values = dict(zip(self.inputs, arrays, strict=True))
        for operation in self.operations:
            results = operation.apply(*(values[key] for key in operation.inputs))
            values.update(zip(operation.outputs, results, strict=True))
        return tuple(values[key] for key in self.outputs)

    def traced(self, shapes: "dict[Key, Value]", axis: tuple[str, int] | None = None) -> Any:
        """Its jaxpr, traced once; `axis` is that of the replicas that exchange values in it, and their number."""
        if axis not in self._traced:
            types = [jax.ShapeDtypeStruct(shapes[key].shape, shapes[key].dtype) for key in self.inputs]
            self._traced[axis] = jax.make_jaxpr(self, axis_env=[axis] if axis else None)(*types)
        return self._traced[axis]

    def timeline_entry(self, begin: int, end: int, burst: int = 0) -> Span:
        """One run of it, or of a burst of iterations."""
        return Span(begin, end, "burst" if burst else "segment", self.label)


@dataclasses.dataclass(frozen=True)
class Host:
    """A stage that runs outside compiled programs, on numpy arrays."""

    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    apply: Callable[..., Sequence[Any]]
    label: str

    def timeline_entry(self, begin: int, end: int) -> Span:
        """One run of it."""
        return Span(begin, end, "host", self.label)


@dataclasses.dataclass(frozen=True)
class Put:
    """Send a value, or its parts, one per replica of the consumer; `split` makes the parts if no segment does."""

    interface: Interface
    keys: tuple[Key, ...]
    split: Callable[..., Sequence[Any]] | None = None

    def timeline_entry(self, begin: int, end: int) -> None:
        """Nothing: the channel records the sent value itself."""


@dataclasses.dataclass(frozen=True)
class Take:
    """Receive a value, or its parts, one per replica of the producer; `join` joins the parts if no segment does."""

    interface: Interface
    keys: tuple[Key, ...]
    join: Callable[..., Sequence[Any]] | None = None

    def timeline_entry(self, begin: int, end: int) -> Span:
        """The wait for the value and its transfer to the device."""
        name = self.interface.name or str(self.interface.value)
        return Span(begin, end, "take", f"take {name} from {self.interface.producer}")


@dataclasses.dataclass(frozen=True)
class Rounds:
    """A loop in Python. `carried` has four keys per carry: initial value, body parameter, body result, final value."""

    length: int
    reverse: bool
    counter: Key
    carried: tuple[tuple[Key, Key, Key, Key], ...]
    buffers: tuple[Key, ...]
    """Outputs that segments stack on the device."""
    body: "tuple[Step, ...]"
    on_host: tuple[tuple[Key, Key], ...] = ()
    """Outputs that are stacked on the host, because host stages read or write them: (stack, value of each round)."""
    donated: tuple[Key, ...] = ()
    """Body parameters of carries whose memory the body reuses."""
    copied: tuple[Key, ...] = ()
    """Those of them that start as a copy, because their initial value is not the loop's own."""

    def timeline_entry(self, begin: int, end: int) -> Span:
        """All rounds of it."""
        return Span(begin, end, "loop", f"loop x{self.length}")


Step = Segment | Host | Put | Take | Rounds


def segments(steps: Sequence[Step]) -> Iterator[Segment]:
    """All segments among these steps, those inside loops included."""
    for step in steps:
        if isinstance(step, Rounds):
            yield from segments(step.body)
        elif isinstance(step, Segment):
            yield step


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A program ready to compile; `shapes` has every value that can enter or leave a segment."""

    program: Program
    steps: tuple[Step, ...]
    shapes: dict[Key, Value]


Item = Operation | Host | Put | Take | Rounds
"""A step before operations are fused into segments."""


def reads(item: Item | Step) -> set[Key]:
    """The keys that a step reads from earlier steps."""
    if isinstance(item, (Operation, Segment, Host)):
        return set(item.inputs)
    if isinstance(item, Put):
        return set(item.keys)
    if isinstance(item, Take):
        return set()
    inside = {key for step in item.body for key in reads(step)} | {value for _, value in item.on_host}
    local = {param for _, param, _, _ in item.carried} | {key for step in item.body for key in writes(step)}
    return (inside - local - set(item.buffers)) | {start for start, _, _, _ in item.carried}


def writes(item: Item | Step) -> set[Key]:
    """The keys that a step writes."""
    if isinstance(item, (Operation, Segment, Host)):
        return set(item.outputs)
    if isinstance(item, Put):
        return set()
    if isinstance(item, Take):
        return set(item.keys)
    stacked = {stack for stack, _ in item.on_host} | set(item.buffers)
    return {last for _, _, _, last in item.carried} | stacked


def late_takes(steps: Sequence[Step]) -> Iterator[Take]:
    """The receives that run one iteration behind."""
    for step in steps:
        if isinstance(step, Rounds):
            yield from late_takes(step.body)
        elif isinstance(step, Take) and step.interface.delivery.lag:
            yield step


def join_operations(items: Sequence[Item], live: set[Key], donatable: set[Key]) -> tuple[Step, ...]:
    """Fuse adjacent operations into segments, which output only keys that are read later or in `live`."""
    groups: list[list[Operation] | Host | Put | Take | Rounds] = []
    pending: list[Operation] = []
    for item in items:
        if isinstance(item, Operation):
            pending.append(item)
            continue
        written = {key for op in pending for key in op.outputs}
        # Glue that this item does not read joins a later segment: a call costs more than the glue. Stages do not wait.
        if pending and (written & reads(item) or any(op.label for op in pending)):
            groups.append(pending)
            pending = []
        groups.append(item)
    if pending:
        groups.append(pending)
    steps: list[Step] = []
    live_keys = set(live)
    for group in reversed(groups):
        if isinstance(group, list):
            written = {key for op in group for key in op.outputs}
            written_before: set[Key] = set()
            inputs: dict[Key, None] = {}
            for op in group:
                inputs.update(dict.fromkeys(key for key in op.inputs if key not in written_before))
                written_before.update(op.outputs)
            outputs = tuple(key for key in dict.fromkeys(k for op in group for k in op.outputs) if key in live_keys)
            if not outputs and not any(op.effects for op in group):
                continue
            donated = tuple(i for i, k in enumerate(inputs) if k in donatable and (k not in live_keys or k in written))
            steps.append(Segment(tuple(group), tuple(inputs), outputs, donated))
            live_keys = (live_keys - written) | set(inputs)
        else:
            steps.append(group)
            live_keys = (live_keys - writes(group)) | reads(group)
    return tuple(reversed(steps))
