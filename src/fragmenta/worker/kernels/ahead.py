"""Numbers that a kernel reads from memory for the next rows while it works on those before, so that it does not wait.

Two steps ahead are numbers that say where others lie: the samples of a minibatch. One step ahead is everything else.
"""

from typing import TYPE_CHECKING

from fragmenta.worker.kernels.ir import Kernel, Kind, Op, Reg, reads_of
from fragmenta.worker.kernels.writer import TYPES

if TYPE_CHECKING:
    from fragmenta.worker.kernels.operations import RowWriter

MOST_AHEAD = 16
"""Most numbers that a lane reads ahead; each takes a register."""


class Ahead:
    """Which loads of a kernel are made ahead, and the lines that make them."""

    def __init__(self, writer: "RowWriter", kernel: Kernel) -> None:
        self.writer, self.rows = writer, kernel.rows
        self.level: dict[Reg, int] = {}
        self.makers: dict[Reg, Op] = {}
        self.always: list[Op] = []
        loads = []
        for op in kernel.body:
            reads = reads_of(op)
            if len(op.outputs) != 1 or op.outputs[0].kind is not Kind.ROW or any(r not in self.level for r in reads):
                continue
            out, level = op.outputs[0], max((self.level[reg] for reg in reads), default=0)
            if op.name == "load" and not reads:
                self.always.append(op)
            elif op.name == "load" and level < 2 and len(loads) < MOST_AHEAD:
                loads.append(op)
                level += 1
            elif op.name == "load":
                continue
            self.level[out], self.makers[out] = level, op
        places = {reg for op in loads if self.level[op.outputs[0]] == 2 for reg in self.needed(op)}
        self.early = [op for op in loads if op.outputs[0] in places]
        self.late = [op for op in loads if op.outputs[0] not in places]

    def needed(self, op: Op) -> set[Reg]:
        """What must be computed before an operation."""
        inputs: set[Reg] = set()
        for reg in reads_of(op):
            if reg not in inputs:
                inputs |= {reg} | self.needed(self.makers[reg])
        return inputs

    def written(self) -> tuple[list[str], list[str]]:
        """Lines before the loop over blocks of rows, and lines at the start of every round."""
        writer, early, late = self.writer, self.early, self.late
        outs = [op.outputs[0] for op in (*early, *late)]
        writer.fetched |= {*outs, *(op.outputs[0] for op in self.always)}
        first = [f"{TYPES[reg.dtype]} next{i};" for i, reg in enumerate(outs)]
        first += [f"{TYPES[op.outputs[0].dtype]} place{i};" for i, op in enumerate(early)]
        for op in self.always:
            address = op.attributes["address"]
            first.append(f"{writer.declared(op.outputs[0])} = load(in{address.array}, {writer.address(address)});")
        names = {op.outputs[0]: writer.name(op.outputs[0]) for op in self.always}
        places = self.lines(early, "place", 0, dict(names))
        known = {**names, **{op.outputs[0]: f"next{i}" for i, op in enumerate(early)}}
        rest = [f"next{i} = place{i};" for i in range(len(early))]
        rest += self.lines(late, "next", len(early), known)
        if early:
            first += ["{ const int soon = BLOCK;", *places, "}"]
        first += ["{ const int soon = BLOCK;", *rest, "}"]
        again = [f"{writer.declared(reg)} = next{i};" for i, reg in enumerate(outs)]
        again += ["{ const int soon = tile + BLOCKS;", *rest, "}"]
        if early:
            first += ["{ const int soon = BLOCK + BLOCKS;", *places, "}"]
            again += ["{ const int soon = tile + 2 * BLOCKS;", *places, "}"]
        return first, again

    def lines(self, loads: list[Op], into: str, number: int, names: dict[Reg, str]) -> list[str]:
        """The loads of some rows, with what their addresses need."""
        writer = self.writer
        kept, writer.names, writer.lines = (writer.names, writer.lines), names, []
        fetched, writer.fetched = writer.fetched, set()
        needed = {reg for op in loads for reg in self.needed(op)} - set(names)
        for reg, op in self.makers.items():
            if reg in needed:
                writer.op(op)
        for i, op in enumerate(loads, number):
            address = op.attributes["address"]
            writer.lines.append(f"{into}{i} = load(in{address.array}, {writer.address(address)});")
        lines, (writer.names, writer.lines), writer.fetched = writer.lines, kept, fetched
        # The rows after the last are those of the end: read, and not used.
        row = f"I row = min(add(and_(at.lane, i_(15)), i_(16 * (soon * WARPS + WARP))), i_({self.rows - 1}));"
        return [row, "(void)row;", *lines] if loads else []
