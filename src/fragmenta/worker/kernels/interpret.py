"""What a kernel computes, in NumPy: slow, but plain to see. Generated sources are compared with it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.worker.kernels.ir import ELEMENTWISE, Address, Kernel, Kind, Op, Reg, RowLoop, Weights

TYPES = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "bool": np.bool_}


def interpret(kernel: Kernel, arrays: Sequence[Any]) -> list[np.ndarray]:
    """The kernel's outputs, then its sums over rows, if it has any."""
    machine = _Machine(kernel, [np.asarray(array).reshape(-1) for array in arrays])
    with np.errstate(all="ignore"):
        machine.run(kernel.body)
    results = [flat.reshape(shape.shape) for flat, shape in zip(machine.outputs, kernel.outputs, strict=True)]
    return [*results, *([machine.sums] if kernel.sums else [])]


class _Machine:
    def __init__(self, kernel: Kernel, arrays: list[np.ndarray]) -> None:
        self.kernel, self.arrays = kernel, arrays
        self.rows = np.arange(kernel.rows)
        self.outputs = [np.zeros(math.prod(shape.shape), shape.dtype) for shape in kernel.outputs]
        self.sums = np.zeros(kernel.sums, np.float32)
        self.values: dict[Reg, np.ndarray] = {}

    def run(self, body: Sequence[Op]) -> None:
        for op in body:
            if isinstance(op, RowLoop):
                self.loop(op)
                continue
            results = self.apply(op)
            for reg, result in zip(op.outputs, results, strict=True):
                self.values[reg] = self.shaped(reg, np.asarray(result))

    def shaped(self, reg: Reg, array: np.ndarray) -> np.ndarray:
        """Rows first, then the width."""
        count = len(self.rows)
        shape = {
            Kind.ROW: (count,),
            Kind.SPREAD: (count, 1),
            Kind.TILE: (count, reg.width),
            Kind.COLUMNS: (1, reg.width),
        }
        return np.broadcast_to(array.astype(TYPES[reg.dtype]), shape[reg.kind])

    def loop(self, op: RowLoop) -> None:
        state = [self.values[reg] for reg in op.inputs]
        rounds = range(op.length)
        for number in reversed(rounds) if op.reverse else rounds:
            self.values.update(zip(op.params, state, strict=True))
            assert op.step is not None
            self.values[op.step] = np.full(len(self.rows), number, np.int32)
            self.run(op.body)
            state = [self.values[reg] for reg in op.results]
        self.values.update(zip(op.outputs, state, strict=True))

    def apply(self, op: Op) -> Sequence[Any]:
        inputs = [self.values[reg] for reg in op.inputs]
        wide = any(reg.kind in (Kind.TILE, Kind.COLUMNS) for reg in op.inputs)
        if op.name == "bitcast":
            return [inputs[0].view(TYPES[op.outputs[0].dtype])]
        if op.name == "convert":
            return [_jax(lambda x: x.astype(TYPES[op.outputs[0].dtype]))(inputs[0])]
        if op.name in FUNCTIONS:
            if wide:  # numbers that are the same for all rows
                inputs = [x[:, None] if x.ndim == 1 else x for x in inputs]
            return [FUNCTIONS[op.name](*inputs)]
        return getattr(self, f"op_{op.name}")(op, *inputs)

    def op_const(self, op: Op) -> Any:
        return [np.full(len(self.rows), op.attributes["value"], TYPES[op.outputs[0].dtype])]

    def op_index(self, op: Op) -> Any:
        atom, space = op.attributes["atom"], self.kernel.space
        return [self.rows if atom is None else np.unravel_index(self.rows, space)[atom]]

    def at(self, address: Address) -> np.ndarray:
        """The places of all rows."""
        return address.offset + sum((self.values[reg].astype(np.int64) * n for reg, n in address.terms), 0 * self.rows)

    def op_load(self, op: Op) -> Any:
        address = op.attributes["address"]
        return [self.arrays[address.array][self.at(address)]]

    def op_load_tile(self, op: Op) -> Any:
        address, columns = op.attributes["address"], np.arange(op.outputs[0].width) * op.attributes["stride"]
        return [self.arrays[address.array][self.at(address)[:, None] + columns]]

    def op_columns(self, op: Op) -> Any:
        return [self.op_load_tile(op)[0][:1]]

    def op_store(self, op: Op, value: np.ndarray) -> Any:
        address = op.attributes["address"]
        self.outputs[address.array][self.at(address)] = value
        return []

    def op_store_tile(self, op: Op, value: np.ndarray) -> Any:
        address, columns = op.attributes["address"], np.arange(op.inputs[0].width) * op.attributes["stride"]
        self.outputs[address.array][self.at(address)[:, None] + columns] = value
        return []

    def op_spread(self, op: Op, value: np.ndarray) -> Any:
        return [value[:, None]]

    def op_widen(self, op: Op, value: np.ndarray) -> Any:
        return [value[:, None] if value.ndim == 1 else value]

    def op_pack(self, op: Op, *columns: np.ndarray) -> Any:
        return [np.stack(columns, 1)]

    def op_unpack(self, op: Op, tile: np.ndarray) -> Any:
        return [np.broadcast_to(tile, (len(self.rows), tile.shape[1]))[:, op.attributes["column"]]]

    def op_reduce(self, op: Op, tile: np.ndarray) -> Any:
        how = {"sum": np.sum, "max": np.max, "min": np.min}[op.attributes["how"]]
        return [np.broadcast_to(how(tile, axis=1), self.rows.shape)]

    def op_threefry(self, op: Op, *words: np.ndarray) -> Any:
        return threefry(*words)

    def op_dot(self, op: Op, *inputs: np.ndarray) -> Any:
        weights: Weights = op.attributes["weights"]
        rows = inputs[0]
        inner, outer = np.ogrid[: weights.inner, : weights.outer]
        places = weights.offset + inner * weights.strides[0] + outer * weights.strides[1]
        return [_product(rows, self.arrays[weights.array][places].astype(np.float32), weights.half)]

    def op_sum(self, op: Op, value: np.ndarray) -> Any:
        total = value.astype(np.float64).sum(0).reshape(-1)
        self.sums[op.attributes["place"] : op.attributes["place"] + len(total)] = total
        return []

    def op_outer(self, op: Op, *inputs: np.ndarray) -> Any:
        (left, right), place = inputs, op.attributes["place"]
        total = _product(left.T, right, op.attributes["half"]).reshape(-1)
        self.sums[place : place + len(total)] = total
        return []


def _product(left: np.ndarray, right: np.ndarray, half: bool) -> np.ndarray:
    if half:
        left, right = (np.asarray(x.astype(jnp.bfloat16)).astype(np.float32) for x in (left, right))
    return (left.astype(np.float64) @ right.astype(np.float64)).astype(np.float32)


def threefry(k0: np.ndarray, k1: np.ndarray, x0: np.ndarray, x1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hash of JAX's default generator."""
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    x0, x1 = x0 + k0, x1 + k1
    for group in range(5):
        for r in rotations[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(r)) | (x1 >> np.uint32(32 - r))
            x1 = x1 ^ x0
        x0, x1 = x0 + keys[(group + 1) % 3], x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def _jax(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """An elementwise function of JAX on NumPy arrays."""

    def apply(*arrays: np.ndarray) -> np.ndarray:
        shape = np.broadcast_shapes(*(x.shape for x in arrays))
        with jax.ensure_compile_time_eval():
            return np.asarray(function(*(jnp.asarray(np.broadcast_to(x, shape)) for x in arrays)))

    return apply


BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    **{name: _jax(getattr(jax.lax, name)) for name in ELEMENTWISE if name not in BITWISE},
    **BITWISE,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "select": np.where,
}
