"""A kernel as C++: with `cuda.h` for a GPU, or with `emulate.h` for a CPU, where tests run it.

A warp holds 16 rows. Lane `l` holds row `l % 16` of every number per row, and a quarter of two rows of a tile, as the
tensor cores want it. Weights lie in shared memory, in the order in which lanes need them.
"""

import dataclasses
import math
from importlib import resources

from fragmenta.worker.kernels.ahead import Ahead
from fragmenta.worker.kernels.ir import Kernel, Kind, Op, RowLoop, all_ops, blocks_of
from fragmenta.worker.kernels.operations import RowWriter
from fragmenta.worker.kernels.values import NoRule
from fragmenta.worker.kernels.writer import number_type

SHARED_BYTES = 200 * 1024
"""Most shared memory of a block."""
PAD = 8
"""Rows of padding in shared memory, so that lanes do not meet in one bank."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a kernel is launched: warps per block, most blocks (loops have one for every 16 rows of each warp), blocks
    that a multiprocessor must have room for, and whether all products keep all bits of float32."""

    warps: int = 4
    blocks: int = 264
    resident: int = 1
    exact: bool = False


@dataclasses.dataclass(frozen=True)
class Source:
    """A kernel's source, and how to launch it."""

    name: str
    text: str
    blocks: int
    threads: int
    shared: int


def source(kernel: Kernel, shape: Shape, emulated: bool = False) -> Source:
    """The source of a kernel."""
    return _Writer(kernel, shape).written(emulated)


def _header(name: str) -> str:
    return resources.files("fragmenta.worker.kernels").joinpath(name).read_text()


class _Writer(RowWriter):
    def __init__(self, kernel: Kernel, shape: Shape) -> None:
        super().__init__(kernel, shape.exact)
        self.shape = shape
        self.end: list[str] = []
        self.final: list[tuple[str, int, int]] = []
        self.slots: list[tuple[str, int]] = []
        self.taken: set[str] = set()
        tile_rows = 16 * shape.warps
        self.tiles = math.ceil(kernel.rows / tile_rows)
        # A block that stays reads weights once; only a loop has enough to do with each of its rows.
        has_loop = any(isinstance(op, RowLoop) for op in kernel.body)
        self.blocks = self.tiles if has_loop and not kernel.sums else min(shape.blocks, self.tiles)
        self.ragged = kernel.rows % tile_rows != 0
        self.ahead = Ahead(self, kernel) if not has_loop else None

    def written(self, emulated: bool) -> Source:
        kernel, shape = self.kernel, self.shape
        first, again = self.ahead.written() if self.ahead else ([], [])
        self.body(kernel.body)
        final_bytes = 4 * shape.warps * sum(size for _, _, size in self.final)
        shared = max(self.shared_bytes, final_bytes)
        if shared > SHARED_BYTES:
            raise NoRule(f"{shared // 1024} KB of shared memory")
        parameters = [f"const {number_type(a)}* __restrict__ in{i}" for i, a in enumerate(kernel.inputs)]
        parameters += [f"{number_type(a)}* __restrict__ out{i}" for i, a in enumerate(kernel.outputs)]
        parameters += ["float* __restrict__ sums"] if kernel.sums else []
        text = "\n".join(
            [
                f"#define WARPS {shape.warps}",
                f"#define RESIDENT {shape.resident}",
                _header("emulate.h") if emulated else _header("cuda.h"),
                "namespace kernel_words {",
                _header("words.h"),
                f"KERNEL({kernel.name})({', '.join(parameters)}) {{",
                f"SHARED({max(shared, 16)}); (void)shared;",
                "const Place at = place(); (void)at;",
                *self.start,
                *first,
                "SYNC;",
                f"for (int tile = BLOCK; tile < {self.tiles}; tile += BLOCKS) {{",
                "I row = add(and_(at.lane, i_(15)), i_(16 * (tile * WARPS + WARP)));",
                *self.liveness(),
                *again,
                *self.lines,
                "}",
                *self.endings(),
                "}",
                "}",
                *(self.emulated_entry() if emulated else []),
                "",
            ]
        )
        return Source(kernel.name, text, self.blocks, 32 * shape.warps, max(shared, 16))

    def liveness(self) -> list[str]:
        low = "lt(at.lane, i_(16))"
        if not self.ragged:
            return ["B live[2] = {b_(true), b_(true)}; (void)live;", f"B mine = {low}; (void)mine;"]
        rows = self.kernel.rows
        return [
            f"B real = lt(row, i_({rows})), live[2]; spread(live, real, at);",
            f"B mine = logical_and(real, {low}); (void)mine;",
            f"row = min(row, i_({rows - 1}));",
        ]

    def emulated_entry(self) -> list[str]:
        kernel = self.kernel
        arrays = [f"const {number_type(a)}*" for a in kernel.inputs] + [f"{number_type(a)}*" for a in kernel.outputs]
        arrays += ["float*"] if kernel.sums else []
        places = [f"({pointer})buffers[{i}]" for i, pointer in enumerate(arrays)]
        return [f"static void call_kernel(void** buffers) {{ kernel_words::{kernel.name}({', '.join(places)}); }}"]

    # sums over rows

    def op_sum(self, op: Op) -> None:
        reg, place = op.inputs[0], op.attributes["place"]
        if reg.kind is Kind.TILE:
            self.start.append(
                f"F sum{place}[{blocks_of(reg)}][2]; UNROLL for (int i = 0; i < {blocks_of(reg)}; ++i) "
                f"sum{place}[i][0] = sum{place}[i][1] = f_(0.0f);"
            )
            self.lines.append(f"add_columns<{blocks_of(reg)}>(sum{place}, {self.name(reg)}, live);")
            self.final.append((f"finish_columns<{blocks_of(reg)}>", place, 8 * blocks_of(reg)))
        elif reg.kind is Kind.ROW:
            self.start.append(f"F sum{place} = f_(0.0f);")
            self.lines.append(f"sum{place} = add(sum{place}, select(mine, {self.name(reg)}, f_(0.0f)));")
            self.final.append(("finish_number", place, 1))
        else:
            raise NoRule("a sum over rows of equal numbers")

    def op_outer(self, op: Op) -> None:
        left, right = op.inputs
        place, half, warps = op.attributes["place"], int(op.attributes["half"]), self.shape.warps
        swapped = right.width > left.width
        if swapped:
            left, right = right, left
        blocks, columns = math.ceil(left.width / 16), blocks_of(right)
        groups = max(1, warps // blocks)  # warps that share a block of rows of the result
        if warps % min(blocks, warps) or columns % groups:
            groups = 1
        each, share = math.ceil(blocks * groups / warps), columns // groups
        stride = 16 * warps + (PAD if half else PAD // 2)
        widths = (16 * each * (warps // groups), 8 * columns)
        slots = [self.slot(width * stride * (2 if half else 4)) for width in widths]
        count, kind = each * share, f"{half}, {int(self.shape.exact or op.attributes['exact'])}"
        self.start.append(
            f"F sum{place}[{count}][4]; UNROLL for (int i = 0; i < {count}; ++i) UNROLL for (int r = 0; r < 4; ++r) "
            f"sum{place}[i][r] = f_(0.0f);"
        )
        where = f"WARP / {groups}, {warps // groups}, {share} * (WARP % {groups})"
        self.lines.append("SYNC;")
        for reg, slot in zip((left, right), slots, strict=True):
            self.lines.append(f"stage_tile<{blocks_of(reg)}, {kind}>({slot}, {self.name(reg)}, {stride}, live, at);")
        self.lines.append("SYNC;")
        self.lines.append(f"outer<{each}, {share}, {kind}>(sum{place}, {slots[0]}, {slots[1]}, {stride}, {where}, at);")
        strides = (1, left.width) if swapped else (right.width, 1)
        self.end.append(
            f"store_outer<{each}, {share}>(mysums + {place}, sum{place}, {where}, {left.width}, {right.width}, "
            f"{strides[0]}, {strides[1]}, at);"
        )

    def slot(self, size: int) -> str:
        """A place in shared memory for a tile of all rows of the block; two are in use at once."""
        for place, room in self.slots:
            if room >= size and place not in self.taken:
                break
        else:
            place = self.share(size, "float")
            self.slots.append((place, size))
        self.taken = self.taken | {place} if len(self.taken) < 1 else set()
        return place

    def endings(self) -> list[str]:
        if not self.kernel.sums:
            return []
        lines = [
            f"float* mysums = sums + (long long)BLOCK * {self.kernel.sums};",
            *self.end,
            "SYNC;",
            "float* parts = (float*)shared;",
        ]
        offset, total = 0, sum(size for _, _, size in self.final)
        for finish, place, size in self.final:
            lines.append(f"{finish}(parts + WARP * {total} + {offset}, sum{place}, at);")
            offset += size
        lines.append("SYNC;")
        offset = 0
        for _, place, size in self.final:
            width = 1 if size == 1 else self.widths(place)
            lines.append(
                f"THREADS(e, {width}) {{ float s = 0.0f; "
                f"for (int w = 0; w < WARPS; ++w) s += parts[w * {total} + {offset} + e]; "
                f"mysums[{place} + e] = s; }}"
            )
            offset += size
        return lines

    def widths(self, place: int) -> int:
        return next(
            op.inputs[0].width
            for op in all_ops(self.kernel.body)
            if op.name == "sum" and op.attributes["place"] == place
        )
