"""Writes each operation that concerns a row by itself: a method per operation, by its name."""

import math

import numpy as np

from fragmenta.worker.kernels.ir import Address, Kind, Op, RowLoop, Weights, blocks_of
from fragmenta.worker.kernels.values import NoRule
from fragmenta.worker.kernels.writer import Writer


class RowWriter(Writer):
    """Knows how operations on rows are written."""

    def op_const(self, op: Op) -> None:
        out, value = op.outputs[0], op.attributes["value"]
        if out.dtype == "f32":
            text = f"f_(as_float({int(np.float32(value).view(np.uint32))}u))"
        elif out.dtype == "bool":
            text = f"b_({str(bool(value)).lower()})"
        else:
            text = f"i_((int){int(value) & 0xFFFFFFFF}u)" if out.dtype == "i32" else f"u_({int(value)}u)"
        self.lines.append(f"const {self.declared(out)} = {text};")

    def op_index(self, op: Op) -> None:
        atom, space = op.attributes["atom"], self.kernel.space
        text = "row"
        if atom is not None:
            inner = math.prod(space[atom + 1 :])
            text = f"rem(div(row, i_({inner})), i_({space[atom]}))"
        self.lines.append(f"{self.declared(op.outputs[0])} = {text};")

    def address(self, address: Address) -> str:
        text = f"i_({address.offset})"
        for reg, stride in address.terms:
            index = self.name(reg) if reg.dtype == "i32" else f"to_i({self.name(reg)})"
            text = f"at_({text}, {index}, {stride})"
        return text

    def op_load(self, op: Op) -> None:
        address = op.attributes["address"]
        self.lines.append(f"{self.declared(op.outputs[0])} = load(in{address.array}, {self.address(address)});")

    def op_load_tile(self, op: Op) -> None:
        out, address, stride = op.outputs[0], op.attributes["address"], op.attributes["stride"]
        self.lines.append(
            f"{self.declared(out)}; load_tile<{blocks_of(out)}, {out.width}>"
            f"({self.name(out)}, in{address.array}, {self.address(address)}, {stride}, at);"
        )

    def op_columns(self, op: Op) -> None:
        out, address, stride = op.outputs[0], op.attributes["address"], op.attributes["stride"]
        if address.terms or out.dtype != "f32":
            self.lines.append(
                f"{self.declared(out)}; load_columns<{blocks_of(out)}, {out.width}>"
                f"({self.name(out)}, in{address.array}, {self.address(address)}, {stride}, at);"
            )
            return
        key = ("columns", address, stride, out.width)
        if key not in self.staged:
            self.staged[key] = self.share(4 * 8 * blocks_of(out), "float")
            self.start.append(
                f"stage_columns({self.staged[key]}, in{address.array} + {address.offset}, {stride}, {out.width});"
            )
        self.in_shared[out] = self.staged[key]

    def op_store(self, op: Op) -> None:
        address, where = op.attributes["address"], "mine"
        if op.attributes["once"]:
            where = "logical_and(eq(at.lane, i_(0)), b_(tile == 0 && WARP == 0))"
        self.lines.append(f"store(out{address.array}, {self.address(address)}, {self.name(op.inputs[0])}, {where});")

    def op_store_tile(self, op: Op) -> None:
        tile, address, stride = op.inputs[0], op.attributes["address"], op.attributes["stride"]
        if op.attributes["once"]:
            raise NoRule("a wide value of all rows")
        self.lines.append(
            f"store_tile<{blocks_of(tile)}, {tile.width}>(out{address.array}, {self.address(address)}, {stride}, "
            f"{self.name(tile)}, live, at);"
        )

    def op_spread(self, op: Op) -> None:
        self.lines.append(
            f"{self.declared(op.outputs[0])}; spread({self.name(op.outputs[0])}, {self.name(op.inputs[0])}, at);"
        )

    def op_pack(self, op: Op) -> None:
        out = op.outputs[0]
        zero = {"f32": "f_(0.0f)", "i32": "i_(0)", "u32": "u_(0)", "bool": "b_(false)"}[out.dtype]
        self.lines.append(
            f"{self.declared(out)}; UNROLL for (int i = 0; i < {blocks_of(out)}; ++i) "
            f"UNROLL for (int r = 0; r < 4; ++r) {self.name(out)}[i][r] = {zero};"
        )
        for i, reg in enumerate(op.inputs):
            self.lines.append(f"pack_column({self.name(out)}, {self.name(reg)}, {i}, at);")

    def op_unpack(self, op: Op) -> None:
        tile, column = op.inputs[0], op.attributes["column"]
        if tile.kind is Kind.COLUMNS:
            raise NoRule("numbers of all rows apart")
        self.lines.append(
            f"{self.declared(op.outputs[0])} = unpack<{blocks_of(tile)}>({self.name(tile)}, {column}, at);"
        )

    def op_reduce(self, op: Op) -> None:
        tile = op.inputs[0]
        if tile.kind is not Kind.TILE or tile.dtype != "f32":
            raise NoRule("a reduction of numbers of all rows")
        self.lines.append(
            f"{self.declared(op.outputs[0])} = reduce_{op.attributes['how']}"
            f"<{blocks_of(tile)}, {tile.width}>({self.name(tile)}, at);"
        )

    def op_threefry(self, op: Op) -> None:
        a, b = op.outputs
        self.lines.append(
            f"U {self.name(a)}, {self.name(b)}; threefry({', '.join(map(self.name, op.inputs))}, "
            f"{self.name(a)}, {self.name(b)});"
        )

    def op_dot(self, op: Op) -> None:
        out, weights = op.outputs[0], op.attributes["weights"]
        parameters = f"<{weights.inner}, {weights.outer}, {int(weights.half)}, {int(self.exact or weights.exact)}>"
        self.lines.append(
            f"{self.declared(out)}; dot{parameters}({self.name(out)}, {self.name(op.inputs[0])}, "
            f"{self.weights(weights, parameters)}, at);"
        )

    def weights(self, weights: Weights, parameters: str) -> str:
        if weights not in self.staged:
            step = 16 if weights.half else 8
            size = math.ceil(weights.inner / step) * math.ceil(weights.outer / 8) * 32 * 8
            self.staged[weights] = place = self.share(size, "uint2")
            self.start.append(
                f"stage_weights{parameters}({place}, in{weights.array} + {weights.offset}, "
                f"{weights.strides[0]}, {weights.strides[1]});"
            )
        return self.staged[weights]

    def op_loop(self, op: Op) -> None:
        assert isinstance(op, RowLoop)
        assert op.step is not None
        for param, start in zip(op.params, op.inputs, strict=True):
            self.lines.append(f"{self.declared(param)};")
            self.copy(self.name(param), param, self.name(start))
        number = f"round{self.depth}"
        self.depth += 1
        self.lines.append(f'_Pragma("unroll 1") for (int {number} = 0; {number} < {op.length}; ++{number}) {{')
        self.lines.append(f"const I {self.name(op.step)} = i_({f'{op.length - 1} - ' if op.reverse else ''}{number});")
        self.body(op.body)
        changed = [(p, r) for p, r in zip(op.params, op.results, strict=True) if p is not r]
        for param, result in changed:
            self.lines.append(f"{self.declared(param).replace(self.name(param), 'next_' + self.name(param), 1)};")
            self.copy(f"next_{self.name(param)}", param, self.name(result))
        for param, _ in changed:
            self.copy(self.name(param), param, f"next_{self.name(param)}")
        self.lines.append("}")
        self.depth -= 1
        for param, out in zip(op.params, op.outputs, strict=True):
            self.names[out] = self.name(param)
