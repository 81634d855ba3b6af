"""Writes the operations of a kernel that concern a row by itself, as C++."""

import itertools
from typing import Any

import numpy as np

from fragmenta.worker.kernels.ir import Kernel, Kind, Op, Reg, all_ops, blocks_of, reads_of
from fragmenta.worker.kernels.values import NoRule

TYPES = {"f32": "F", "i32": "I", "u32": "U", "bool": "B"}
NUMBERS = {"float32": "float", "int32": "int", "uint32": "unsigned", "bool": "bool", "bfloat16": "half_word"}
RENAMED = {"and": "and_", "or": "or_", "xor": "xor_", "not": "not_"}


class Writer:
    """Collects the lines of a kernel: those that run once at the start, and those for every 16 rows of a warp."""

    def __init__(self, kernel: Kernel, exact: bool) -> None:
        self.kernel, self.exact = kernel, exact
        self.names: dict[Reg, str] = {}
        self.lines: list[str] = []
        self.start: list[str] = []
        self.shared_bytes = 0
        self.staged: dict[Any, str] = {}
        self.in_shared: dict[Reg, str] = {}
        self.depth = 0
        self.fetched: set[Reg] = set()
        self.users: dict[Reg, list[Op]] = {}
        for op in all_ops(kernel.body):
            for reg in reads_of(op):
                self.users.setdefault(reg, []).append(op)

    # registers

    def name(self, reg: Reg) -> str:
        """The variable that holds a register."""
        if reg not in self.names:
            self.names[reg] = f"v{len(self.names)}"
        return self.names[reg]

    def declared(self, reg: Reg) -> str:
        """The declaration of that variable."""
        kind, name = TYPES[reg.dtype], self.name(reg)
        extent = {
            Kind.ROW: "",
            Kind.TILE: f"[{blocks_of(reg)}][4]",
            Kind.SPREAD: "[2]",
            Kind.COLUMNS: f"[{blocks_of(reg)}][2]",
        }
        return f"{kind} {name}{extent[reg.kind]}"

    def element(self, reg: Reg) -> str:
        """A register's part in a loop over blocks `i` of columns and lanes' parts `r`."""
        if reg in self.in_shared:
            return f"load({self.in_shared[reg]}, column_of(i, r, at))"
        suffix = {Kind.ROW: "", Kind.TILE: "[i][r]", Kind.SPREAD: "[r >> 1]", Kind.COLUMNS: "[i][r & 1]"}
        return self.name(reg) + suffix[reg.kind]

    def share(self, size: int, kind: str) -> str:
        """A place in shared memory."""
        place = f"(({kind}*)(shared + {self.shared_bytes}))"
        self.shared_bytes += (size + 15) // 16 * 16
        return place

    # operations

    def body(self, ops: tuple[Op, ...]) -> None:
        """Write operations, one after the other."""
        for condition, together in itertools.groupby(ops, lambda op: op.attributes.get("when")):
            if condition is None:
                self.plain_body(tuple(together))
            else:
                self.rare_body(condition, tuple(together))

    def rare_body(self, condition: Reg, ops: tuple[Op, ...]) -> None:
        """Operations that are left out if the condition holds in no row of the warp."""
        inside = {id(op) for op in ops}
        outs = [reg for op in ops for reg in op.outputs if any(id(user) not in inside for user in self.users[reg])]
        names = [f"rare{len(self.names) + i}" for i in range(len(outs))]
        for reg, name in zip(outs, names, strict=True):
            # Where the condition does not hold, nothing reads it.
            self.lines.append(f"{self.declared(reg).replace(self.name(reg), name, 1)}; (void){name};")
        self.lines.append(f"if (any_lane({self.name(condition)})) {{")
        self.plain_body(ops)
        for reg, name in zip(outs, names, strict=True):
            self.copy(name, reg, self.name(reg))
            self.names[reg] = name
        self.lines.append("}")

    def plain_body(self, ops: tuple[Op, ...]) -> None:
        """Operations of every row, arithmetic on tiles in common loops."""
        group: list[Op] = []
        made: set[Reg] = set()
        for op in ops:
            width = op.outputs[0].width if op.outputs else 0
            fusible = _is_tile_arithmetic(op)
            if group and (not made.isdisjoint(reads_of(op)) if not fusible else width != group[0].outputs[0].width):
                self.tile_loop(group)
                group, made = [], set()
            if fusible:
                group.append(op)
                made |= set(op.outputs)
            else:
                self.op(op)
        if group:
            self.tile_loop(group)

    def tile_loop(self, group: list[Op]) -> None:
        """Arithmetic on tiles of one width, as one loop over their elements."""
        inside = {id(op) for op in group}
        for kinds, parts in (((Kind.COLUMNS,), 2), ((Kind.TILE,), 4)):
            ops = [op for op in group if op.outputs[0].kind in kinds]
            if not ops:
                continue
            local = {
                op.outputs[0]
                for op in ops
                if all(
                    id(user) in inside and user.outputs[0].kind in kinds for user in self.users.get(op.outputs[0], [])
                )
            }
            for op in ops:
                if op.outputs[0] not in local:
                    self.lines.append(f"{self.declared(op.outputs[0])};")
            width = blocks_of(ops[0].outputs[0])
            self.lines.append(f"UNROLL for (int i = 0; i < {width}; ++i) UNROLL for (int r = 0; r < {parts}; ++r) {{")
            for op in ops:
                out = op.outputs[0]
                expression = self.expression(
                    op, [self.name(reg) if reg in local else self.element(reg) for reg in op.inputs]
                )
                target = f"{TYPES[out.dtype]} {self.name(out)}" if out in local else self.element(out)
                self.lines.append(f"  {target} = {expression};")
            self.lines.append("}")

    def expression(self, op: Op, inputs: list[str]) -> str:
        """The result of an elementwise operation."""
        out = op.outputs[0]
        if op.name == "widen":
            return inputs[0]
        if op.name == "select":
            return f"select({', '.join(inputs)})"
        if op.name in ("convert", "bitcast"):
            prefix = "to" if op.name == "convert" else "bits"
            return f"{prefix}_{TYPES[out.dtype].lower()}({inputs[0]})"
        return f"{RENAMED.get(op.name, op.name)}({', '.join(inputs)})"

    def op(self, op: Op) -> None:
        """An operation by itself."""
        if op.outputs and op.outputs[0] in self.fetched:
            return
        handler = getattr(self, f"op_{op.name}", None)
        if handler:
            handler(op)
            return
        reads = [self.name(reg) for reg in op.inputs]
        self.lines.append(f"{self.declared(op.outputs[0])} = {self.expression(op, reads)};")

    def copy(self, target: str, reg: Reg, origin: str) -> None:
        """A register's numbers in another variable."""
        if reg.kind is Kind.ROW:
            self.lines.append(f"{target} = {origin};")
            return
        self.lines.append(
            f"UNROLL for (int i = 0; i < {blocks_of(reg)}; ++i) UNROLL for (int r = 0; r < 4; ++r) "
            f"{target}[i][r] = {origin}[i][r];"
        )


def number_type(array: Any) -> str:
    """The C++ type of an array's elements."""
    name = np.dtype(array.dtype).name
    if name not in NUMBERS:
        raise NoRule(f"arrays of type {name}")
    return NUMBERS[name]


def _is_tile_arithmetic(op: Op) -> bool:
    moves = ("dot", "pack", "load_tile", "columns", "loop", "const")
    return len(op.outputs) == 1 and op.outputs[0].kind in (Kind.TILE, Kind.COLUMNS) and op.name not in moves
