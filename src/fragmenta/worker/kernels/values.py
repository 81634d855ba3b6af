"""What lowering knows of a value: where it lies in memory, or in which registers, and which dimensions are rows."""

import dataclasses
import math
from typing import Any

import numpy as np

from fragmenta.worker.kernels.ir import Address, Kind, Op, Reg

WIDE = 16
"""Numbers per row from which a dimension is kept as a tile; below, as one register for each."""
MOST_REGISTERS = 64
"""Most registers that a value may take while it is not a tile."""

DTYPES = {"float32": "f32", "bfloat16": "f32", "int32": "i32", "uint32": "u32", "bool": "bool"}
"""Types of registers; bfloat16 is computed in float32, and rounded for products and in memory."""

Tags = tuple[tuple[int, ...], ...]
"""For every dimension of a value, the dimensions of the kernel's space in it: none if it is no row dimension."""


class NoRule(Exception):
    """No rule covers an equation."""


@dataclasses.dataclass(frozen=True, eq=False)
class Memory:
    """A strided view of an array in memory."""

    array: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    terms: tuple[tuple[Reg, int], ...] = ()

    def replace(self, **changes: Any) -> "Memory":
        """The view with some fields replaced."""
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Registers: `regs` has the value's dimensions, but 1 for rows, for the wide one and where all are equal."""

    regs: Any  # an array of Reg
    dtype: str
    shape: tuple[int, ...]
    tags: Tags
    wide: int | None = None


@dataclasses.dataclass(frozen=True)
class Summed:
    """A sum over all rows: places in the flat buffer of sums, of which every block adds up its own."""

    offset: int
    shape: tuple[int, ...]


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array in row-major order."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def register_type(dtype: Any) -> str:
    """The type of the registers of an array's elements."""
    name = np.dtype(dtype).name
    if name not in DTYPES:
        raise NoRule(f"numbers of type {name}")
    return DTYPES[name]


class Builder:
    """Collects operations, each of them once."""

    def __init__(self, space: tuple[int, ...]) -> None:
        self.space = space
        self.sums = 0
        self.scopes: list[tuple[list[Op], dict[Any, Any]]] = [([], {})]
        self.depth: dict[Reg, int] = {}

    def emit(
        self, name: str, inputs: tuple[Reg, ...], kind: Kind, dtype: str, width: int = 0, **attributes: Any
    ) -> Reg:
        """The result of an operation on registers."""
        return self.emit_all(name, inputs, ((kind, dtype),), width, **attributes)[0]

    def emit_all(
        self, name: str, inputs: tuple[Reg, ...], kinds: tuple[tuple[Kind, str], ...], width: int = 0, **attributes: Any
    ) -> tuple[Reg, ...]:
        """All results of an operation."""
        address: Address | None = attributes.get("address")
        key = (
            name,
            inputs,
            kinds,
            width,
            tuple(sorted((k, repr(v) if k == "value" else v) for k, v in attributes.items())),
        )
        read = [*inputs, *(index for index, _ in address.terms)] if address else list(inputs)
        depth = max((self.depth[reg] for reg in read), default=0)
        # What a loop does not change is computed before it.
        body, known = self.scopes[depth]
        if key in known:
            return known[key]
        uniform = name not in ("index", "dot", "unpack") and all(reg.kind is Kind.ROW and reg.uniform for reg in read)
        outputs = tuple(Reg(kind, dtype, width, uniform and kind is Kind.ROW) for kind, dtype in kinds)
        body.append(Op(name, inputs, outputs, attributes))
        known[key] = outputs
        self.depth.update(dict.fromkeys(outputs, depth))
        return outputs

    def forget(self) -> None:
        """Let nothing be found again whose operation was taken back."""
        for body, known in self.scopes:
            there = {reg for op in body for reg in op.outputs}
            for key in [key for key, regs in known.items() if there.isdisjoint(regs)]:
                del known[key]

    def effect(self, name: str, inputs: tuple[Reg, ...], **attributes: Any) -> None:
        """An operation without a result."""
        self.scopes[-1][0].append(Op(name, inputs, (), attributes))

    def const(self, value: Any, dtype: str) -> Reg:
        """A register with the same number in every row."""
        return self.emit("const", (), Kind.ROW, dtype, value=_plain_number(value, dtype))

    def index(self, atom: int | None) -> Reg:
        """A row's index along a dimension of the space; None is the number of the row."""
        if len(self.space) == 1:
            atom = None
        return self.emit("index", (), Kind.ROW, "i32", atom=atom)

    def row_terms(self, tags: Tags, strides: tuple[int, ...]) -> tuple[tuple[Reg, int], ...]:
        """The terms of the address of a row's element."""
        along = [0] * len(self.space)
        for tag, stride in zip(tags, strides, strict=True):
            for atom in reversed(tag):
                along[atom] += stride
                stride *= self.space[atom]
        inner = [math.prod(self.space[i + 1 :]) for i in range(len(self.space))]
        if along[-1] and all(stride == along[-1] * size for stride, size in zip(along, inner, strict=True)):
            return ((self.index(None), along[-1]),)
        return tuple((self.index(i), stride) for i, stride in enumerate(along) if stride)

    def default_tags(self, shape: tuple[int, ...]) -> Tags:
        """Which dimensions of a value in memory are rows, if nothing else says it: the first that fit."""
        rank = len(self.space)
        if shape[:rank] == self.space:
            return (*((i,) for i in range(rank)), *((),) * (len(shape) - rank))
        if rank > 1 and shape[:1] == (math.prod(self.space),):
            return (tuple(range(rank)), *((),) * (len(shape) - 1))
        for i, size in enumerate(shape):
            if rank == 1 and size == self.space[0]:
                return (*((),) * i, (0,), *((),) * (len(shape) - i - 1))
        return ((),) * len(shape)

    def rows(self, value: Any, shape: tuple[int, ...], tags: Tags | None = None, wide: int | None = None) -> Rows:
        """A value of any kind in registers, in `shape` (it can be broadcast to), with these tags and wide dimension.

        Dimensions that it is constant along have no tag in the result, and a single register.
        """
        if isinstance(value, Summed):
            raise NoRule("a sum over rows that rows need")
        if isinstance(value, Memory):
            return self._loaded(value, shape, tags if tags is not None else self.default_tags(shape), wide)
        if not isinstance(value, Rows):
            return self._known(np.asarray(value), shape, wide)
        value = expanded(value, shape)
        if value.wide is None and wide is not None:
            return self._packed(value, wide)
        if value.wide is not None and wide is None:
            return self.unpacked(value)
        if value.wide != wide:
            raise NoRule("two wide dimensions")
        return value

    def _known(self, array: np.ndarray, shape: tuple[int, ...], wide: int | None) -> Rows:
        array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        dtype = register_type(array.dtype)
        array = _shrunk(array)
        if array.size > MOST_REGISTERS:
            raise NoRule(f"a constant of {array.size} numbers")
        regs = np.empty(array.shape, object)
        for position in np.ndindex(*array.shape):
            regs[position] = self.const(array[position], dtype)
        value = Rows(regs, np.dtype(array.dtype).name, shape, ((),) * len(shape))
        if any(size > 1 and shape[i] != size for i, size in enumerate(array.shape)):
            raise NoRule("a constant along the rows")
        return self._packed(value, wide) if wide is not None else value

    def _loaded(self, view: Memory, shape: tuple[int, ...], tags: Tags, wide: int | None) -> Rows:
        lead = len(shape) - len(view.shape)
        sizes_held, strides = (1,) * lead + view.shape, (0,) * lead + view.strides
        steps = tuple(0 if size == 1 else stride for size, stride in zip(sizes_held, strides, strict=True))
        tags = tuple(tag if step else () for tag, step in zip(tags, steps, strict=True))
        for tag, size, full in zip(tags, sizes_held, shape, strict=True):
            if (tag and size != math.prod(self.space[i] for i in tag)) or size not in (1, full):
                raise NoRule("rows that do not line up")
        dtype = register_type(view.dtype)
        sizes = tuple(
            1 if tag or not step or i == wide else size
            for i, (tag, step, size) in enumerate(zip(tags, steps, sizes_held, strict=True))
        )
        if math.prod(sizes) > MOST_REGISTERS:
            raise NoRule(f"{math.prod(sizes)} numbers per row")
        terms = (*view.terms, *self.row_terms(tags, steps))
        regs = np.empty(sizes, object)
        for position in np.ndindex(*sizes):
            offset = view.offset + sum(i * step for i, step in zip(position, steps, strict=True))
            address = Address(view.array, offset, terms)
            if wide is None or not steps[wide]:
                regs[position] = self.emit("load", (), Kind.ROW, dtype, address=address)
                continue
            all_uniform = all(reg.uniform for reg, _ in terms)
            kind, name = (Kind.COLUMNS, "columns") if all_uniform else (Kind.TILE, "load_tile")
            regs[position] = self.emit(name, (), kind, dtype, shape[wide], address=address, stride=steps[wide])
        return Rows(regs, np.dtype(view.dtype).name, shape, tags, wide)

    def _packed(self, value: Rows, wide: int) -> Rows:
        """A value whose registers along a dimension become tiles."""
        if value.tags[wide]:
            raise NoRule("rows along a wide dimension")
        count = value.regs.shape[wide]
        if count == 1 and value.shape[wide] > 1:
            return dataclasses.replace(value, wide=wide)
        sizes = tuple(1 if i == wide else size for i, size in enumerate(value.regs.shape))
        regs = np.empty(sizes, object)
        for position in np.ndindex(*sizes):
            index = tuple(slice(None) if i == wide else p for i, p in enumerate(position))
            parts = tuple(value.regs[index])
            regs[position] = self.emit("pack", parts, Kind.TILE, parts[0].dtype, count)
        return dataclasses.replace(value, regs=regs, wide=wide)

    def unpacked(self, value: Rows) -> Rows:
        """A value whose tiles become one register per number."""
        if value.wide is None:
            return value
        wide, width = value.wide, value.shape[value.wide]
        if all(reg.kind is Kind.ROW for reg in value.regs.flat):
            return dataclasses.replace(value, wide=None)
        if width * value.regs.size > MOST_REGISTERS:
            raise NoRule(f"{width} numbers of a row apart")
        regs = np.empty(tuple(width if i == wide else size for i, size in enumerate(value.regs.shape)), object)
        for position in np.ndindex(*regs.shape):
            source = value.regs[tuple(0 if i == wide else p for i, p in enumerate(position))]
            if source.kind is Kind.ROW:
                regs[position] = source
            else:
                regs[position] = self.emit("unpack", (source,), Kind.ROW, source.dtype, column=position[wide])
        return dataclasses.replace(value, regs=regs, wide=None)


def expanded(value: Rows, shape: tuple[int, ...]) -> Rows:
    """A value as one of `shape`, with new leading dimensions."""
    lead = len(shape) - len(value.shape)
    if lead < 0 or any(a not in (1, b) for a, b in zip(value.shape, shape[lead:], strict=True)):
        raise NoRule("shapes that do not line up")
    wide = None if value.wide is None else value.wide + lead
    regs = value.regs.reshape((1,) * lead + value.regs.shape)
    return Rows(regs, value.dtype, shape, ((),) * lead + value.tags, wide)


def merged_tags(values: list[Rows]) -> Tags:
    """The tags of values that are combined element by element."""
    result = []
    for i, tags in enumerate(zip(*(value.tags for value in values), strict=True)):
        distinct = {tag for tag in tags if tag}
        if len(distinct) > 1:
            raise NoRule("rows that meet other rows")
        if distinct and any(not v.tags[i] and (v.regs.shape[i] > 1 or v.wide == i) for v in values):
            raise NoRule("rows that meet another dimension")
        result.append(distinct.pop() if distinct else ())
    return tuple(result)


def _shrunk(array: np.ndarray) -> np.ndarray:
    """An array with size 1 along dimensions where all its parts are equal."""
    for axis, size in enumerate(array.shape):
        first = array.take([0], axis)
        if (
            size > 1
            and array.dtype.kind != "V"
            and bool(np.all((array == first) | ((array != array) & (first != first))))
        ):
            array = first
    return array


def _plain_number(value: Any, dtype: str) -> Any:
    if dtype == "bool":
        return bool(value)
    return float(np.float32(value)) if dtype == "f32" else int(value)
