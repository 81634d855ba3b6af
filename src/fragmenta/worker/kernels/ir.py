"""The small language between jaxprs and CUDA: what is done with one row, for all rows of a kernel.

A kernel has rows (environments, or the samples of a minibatch) and everything else. A group of lanes holds a block of
rows; what a value is per row decides how it lies in registers:

    ROW      one number per row
    TILE     `width` numbers per row: the outputs of a layer
    SPREAD   one number per row, ready to be combined with tiles
    COLUMNS  `width` numbers that are the same for all rows: a bias, ready to be combined with tiles

op ::= const | index | load | store | elementwise | threefry | spread | columns | load_tile | store_tile
     | dot (with weights that all rows share) | pack | unpack | reduce (over the width)
     | sum | outer (sums over the rows) | RowLoop
"""

import dataclasses
import enum
from collections.abc import Iterator
from typing import Any

import numpy as np

ELEMENTWISE = (
    *(
        "add",
        "sub",
        "mul",
        "div",
        "rem",
        "max",
        "min",
        "pow",
        "atan2",
        "nextafter",
        "neg",
        "abs",
        "sign",
        "floor",
        "ceil",
    ),
    *("exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "logistic", "sqrt", "rsqrt", "cbrt", "erf"),
    *(
        "erf_inv",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "square",
        "is_finite",
        "population_count",
    ),
    *("and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge"),
    *("shift_left", "shift_right_logical", "shift_right_arithmetic"),
)
"""Operations on numbers one by one that are called like JAX's primitives."""


class Kind(enum.Enum):
    """How a value varies, and so how lanes hold it."""

    ROW = "row"
    TILE = "tile"
    SPREAD = "spread"
    COLUMNS = "columns"


@dataclasses.dataclass(frozen=True, eq=False)
class Reg:
    """A value in registers; `dtype` is f32, i32, u32 or bool."""

    kind: Kind
    dtype: str
    width: int = 0
    uniform: bool = False
    """Whether a ROW is known to be the same for all rows."""


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """One instruction; `attributes` are constants."""

    name: str
    inputs: tuple[Reg, ...]
    outputs: tuple[Reg, ...]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class RowLoop(Op):
    """`length` rounds of `body`: its inputs become `params`, then `results` of each round the params of the next."""

    length: int = 0
    reverse: bool = False
    step: Reg | None = None
    """The number of the round."""
    params: tuple[Reg, ...] = ()
    results: tuple[Reg, ...] = ()
    body: tuple[Op, ...] = ()


@dataclasses.dataclass(frozen=True)
class Address:
    """An element of an array in memory: `offset` plus the product of every index (a register) with its stride."""

    array: int
    offset: int
    terms: tuple[tuple[Reg, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Weights:
    """A matrix in memory that all rows share, with `inner` x `outer` elements and their strides."""

    array: int
    offset: int
    inner: int
    outer: int
    strides: tuple[int, int]
    half: bool = False
    """Whether products round their factors to bfloat16."""
    exact: bool = False
    """Whether products keep all bits of their factors."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel: per row, `body` reads `inputs` and writes `outputs`; sums over rows go to `sums` places, in order."""

    name: str
    space: tuple[int, ...]
    """Sizes of the dimensions whose product is the number of rows."""
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    sums: int
    body: tuple[Op, ...]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(np.prod(self.space))


def all_ops(body: tuple[Op, ...]) -> Iterator[Op]:
    """Every operation, those in loops included."""
    for op in body:
        yield op
        if isinstance(op, RowLoop):
            yield from all_ops(op.body)


def without_unused(body: tuple[Op, ...], needed: set[Reg] | None = None) -> tuple[Op, ...]:
    """The same body without operations whose results nothing reads; loops lose carries that only feed themselves."""
    wanted: set[Reg] = set(needed or ())
    kept: list[Op] = []
    for op in reversed(body):
        if isinstance(op, RowLoop):
            op = _trimmed(op, wanted)
        if op.outputs and wanted.isdisjoint(op.outputs) and not (isinstance(op, RowLoop) and _has_effects(op.body)):
            continue
        wanted |= set(op.inputs) | {index for index, _ in _terms(op)}
        if isinstance(op, RowLoop):
            wanted |= free_registers(op)
        kept.append(op)
    return tuple(reversed(kept))


def blocks_of(reg: Reg) -> int:
    """How many blocks of 8 columns a tile has."""
    return (reg.width + 7) // 8


def reads_of(op: Op) -> list[Reg]:
    """The registers that an operation reads."""
    address = op.attributes.get("address")
    regs = [*op.inputs, *((reg for reg, _ in address.terms) if address else ())]
    if isinstance(op, RowLoop):
        regs += [*op.results, *(reg for inner in all_ops(op.body) for reg in reads_of(inner))]
    return regs


CHEAP = ("add", "sub", "mul", "neg", "max", "min", "select", "convert", "widen", "square")
"""Arithmetic that is done only where its result is read, so that fewer tiles are held at once."""


def late_arithmetic(body: tuple[Op, ...]) -> tuple[Op, ...]:
    """The same body with cheap operations on tiles moved to their first use, if what they read is there anyway."""
    ops = list(body)
    for op in reversed(body):
        if op.name not in CHEAP or op.outputs[0].kind is not Kind.TILE:
            continue
        here = ops.index(op)
        first = next((i for i in range(here + 1, len(ops)) if op.outputs[0] in ops[i].inputs), here)
        read_then = {reg for later in ops[first:] for reg in later.inputs}
        if all(reg.kind is not Kind.TILE or reg in read_then for reg in op.inputs):
            ops.insert(first - 1, ops.pop(here))
    return tuple(ops)


def free_registers(loop: RowLoop) -> set[Reg]:
    """The registers that a loop's body reads from outside."""
    made = {loop.step, *loop.params}
    read = set(loop.results)
    for op in all_ops(loop.body):
        made |= set(op.outputs)
        read |= set(op.inputs) | {index for index, _ in _terms(op)}
        if isinstance(op, RowLoop):
            made |= {op.step, *op.params}
            read |= set(op.results)
    return {reg for reg in read if reg not in made}


def _terms(op: Op) -> tuple[tuple[Reg, int], ...]:
    address = op.attributes.get("address")
    return address.terms if address else ()


def _has_effects(body: tuple[Op, ...]) -> bool:
    return any(not op.outputs for op in all_ops(body))


def _trimmed(loop: RowLoop, wanted: set[Reg]) -> RowLoop:
    """The loop without carries that nothing needs."""
    keep = [output in wanted for output in loop.outputs]
    while True:
        results = {result for result, kept in zip(loop.results, keep, strict=True) if kept}
        body = without_unused(loop.body, results)
        inner = dataclasses.replace(loop, body=body, results=tuple(results), params=())
        read = free_registers(inner)
        now = [kept or param in read for kept, param in zip(keep, loop.params, strict=True)]
        if now == keep:
            break
        keep = now

    def only(items: tuple[Reg, ...]) -> tuple[Reg, ...]:
        return tuple(item for item, kept in zip(items, keep, strict=True) if kept)

    return dataclasses.replace(
        loop,
        inputs=only(loop.inputs),
        outputs=only(loop.outputs),
        params=only(loop.params),
        results=only(loop.results),
        body=body,
    )


def array_read(op: Op) -> int | None:
    """The input array that an operation reads."""
    if "weights" in op.attributes:
        return op.attributes["weights"].array
    if op.name in ("load", "load_tile", "columns"):
        return op.attributes["address"].array
    return None


def renumbered(body: tuple[Op, ...], place: dict[int, int]) -> tuple[Op, ...]:
    """The same body with other numbers for its input arrays."""
    result = []
    for op in body:
        if isinstance(op, RowLoop):
            op = dataclasses.replace(op, body=renumbered(op.body, place))
        elif (array := array_read(op)) is not None:
            attributes = dict(op.attributes)
            key = "weights" if "weights" in attributes else "address"
            attributes[key] = dataclasses.replace(attributes[key], array=place[array])
            op = dataclasses.replace(op, attributes=attributes)
        result.append(op)
    return tuple(result)
