"""From equations to kernels: a loop whose rounds treat every row alike, or such equations one after the other."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.tracing.jaxprs import inner_jaxprs, is_dropped, is_literal, open_jaxpr, scan_parts
from fragmenta.worker.kernels import indexing, products, reductions, structure
from fragmenta.worker.kernels.ir import (
    Kernel,
    Kind,
    Op,
    Reg,
    RowLoop,
    all_ops,
    array_read,
    late_arithmetic,
    renumbered,
    without_unused,
)
from fragmenta.worker.kernels.plain import folded
from fragmenta.worker.kernels.rare import rare_work
from fragmenta.worker.kernels.rules import RULES
from fragmenta.worker.kernels.stores import store
from fragmenta.worker.kernels.values import (
    WIDE,
    Builder,
    Memory,
    NoRule,
    Rows,
    Summed,
    contiguous,
    register_type,
)

LARGEST = 2**31 - 1
"""Most elements of an array, whose addresses are 32-bit integers."""
FOLDED = 4_096
"""Most elements of an array that is computed while lowering."""

assert all((indexing, products, reductions, structure))  # their rules are registered by importing them


class UnsupportedEquation(NoRule):
    """The equation without a rule, and why."""

    def __init__(self, equation: Any, reason: str) -> None:
        super().__init__(f"{equation.primitive.name}: {reason}")


@dataclasses.dataclass(frozen=True)
class Lowering:
    """A kernel, the variables that its inputs are, the equations to run before it, and what its outputs are."""

    kernel: Kernel
    inputs: tuple[Any, ...]
    before: tuple[tuple[Any, tuple[Any, ...]], ...]
    """Each with the variables that it reads, as they are called outside the loop."""
    outputs: tuple[Any, ...]
    """The variable of every output array."""
    sums: tuple[tuple[Any, Summed], ...] = ()
    """The variables that are sums over rows."""


class Body:
    """Lowers equations, one after the other, onto a builder."""

    def __init__(self, space: tuple[int, ...]) -> None:
        self.builder = Builder(space)
        self.values: dict[Any, Any] = {}
        self.arrays: list[Any] = []
        self.before: list[Any] = []
        self.outside: set[Any] = set()
        self.alias: dict[Any, Any] = {}

    def memory(self, variable: Any) -> Memory:
        """The view of a whole array outside the kernel."""
        shape = tuple(variable.aval.shape)
        if np.prod(shape, dtype=float) > LARGEST:
            raise NoRule("an array of more than 2**31 elements")
        self.arrays.append(variable)
        view = Memory(len(self.arrays) - 1, variable.aval.dtype.name, shape, contiguous(shape))
        self.outside.add(variable)
        self.values[variable] = view
        return view

    def read(self, atom: Any) -> Any:
        """The value of an equation's input."""
        return np.asarray(atom.val, atom.aval.dtype) if is_literal(atom) else self.values[atom]

    def run(self, equations: Sequence[Any]) -> None:
        """Lower equations; those of loop constants alone are left for XLA to run before the kernel."""
        for equation in equations:
            try:
                self._run(equation)
            except UnsupportedEquation:
                raise
            except NoRule as error:
                raise UnsupportedEquation(equation, str(error)) from None

    def _run(self, equation: Any) -> None:
        values = [self.read(atom) for atom in equation.invars]
        results, name = list(equation.outvars), equation.primitive.name
        known = all(isinstance(value, np.ndarray) for value in values) and not any(inner_jaxprs(equation))
        if known and all(variable.aval.size <= FOLDED for variable in results):
            self.values.update(zip(results, folded(equation, values), strict=True))
            return
        one_number = known and name == "broadcast_in_dim" and np.size(values[0]) == 1  # needs no array in memory
        if (
            not one_number
            and all(
                is_literal(atom) or atom in self.outside or isinstance(self.values[atom], np.ndarray)
                for atom in equation.invars
            )
            and not equation.effects
        ):
            inputs = [atom for atom in equation.invars if not is_literal(atom)]
            if all(atom in self.outside for atom in inputs):
                self.before.append(
                    (equation, tuple(self.alias.get(a, a) if not is_literal(a) else a for a in equation.invars))
                )
                for variable in results:
                    self.memory(variable)
                return
        if name == "scan":
            self.values.update(zip(results, self.loop(equation, values), strict=True))
            return
        if name not in RULES:
            raise NoRule("no rule")
        self.values.update(zip(results, RULES[name](self.builder, equation, values), strict=True))

    def loop(self, equation: Any, values: list[Any], stacked: Sequence[int] = ()) -> list[Any]:
        """A scan as a loop; `stacked` are the output arrays of its stacked results, which only the outermost has."""
        builder, params, parts = self.builder, equation.params, scan_parts(equation)
        inner, constants = open_jaxpr(params["jaxpr"])
        fixed, starts = values[: parts.constants], values[parts.constants : parts.constants + parts.carries]
        sequences = values[parts.constants + parts.carries :]
        names = inner.invars
        carried = names[parts.constants : parts.constants + parts.carries]
        if any(not isinstance(view, Memory) for view in sequences):
            raise NoRule("a loop over parts of registers")
        first = [self._carry(value, variable) for value, variable in zip(starts, carried, strict=True)]
        depth = len(builder.scopes)
        step = Reg(Kind.ROW, "i32", 0, True)
        loop_params = [[_like(reg, not any(rows.tags)) for reg in rows.regs.flat] for rows in first]
        builder.depth.update(dict.fromkeys([step, *(reg for regs in loop_params for reg in regs)], depth))
        builder.scopes.append(([], {}))
        self.values.update(zip(names[: parts.constants], fixed, strict=True))
        self.values.update(zip(inner.constvars, map(np.asarray, constants), strict=True))
        for variable, rows, regs in zip(carried, first, loop_params, strict=True):
            grid = np.empty(rows.regs.shape, object)
            grid.reshape(-1)[:] = regs
            self.values[variable] = dataclasses.replace(rows, regs=grid)
        for variable, view in zip(names[parts.constants + parts.carries :], sequences, strict=True):
            terms = (*view.terms, (step, view.strides[0]))
            self.values[variable] = view.replace(shape=view.shape[1:], strides=view.strides[1:], terms=terms)
        for variable, value in zip(names, fixed, strict=False):
            if isinstance(value, Memory) and self._whole(value):
                self.alias[variable] = self.arrays[value.array]
                self.outside.add(variable)
        self.run(inner.eqns)
        results = [self.read(atom) for atom in inner.outvars]
        ends = [self._result(value, rows) for value, rows in zip(results[: parts.carries], first, strict=True)]
        if len(results) > parts.carries and not stacked:
            raise NoRule("a loop that stacks results in registers")
        for array, atom, value, outer_variable in zip(
            stacked,
            inner.outvars[parts.carries :],
            results[parts.carries :],
            equation.outvars[parts.carries :],
            strict=True,
        ):
            if not is_dropped(outer_variable):
                size = int(np.prod(atom.aval.shape, dtype=int))
                store(builder, value, atom.aval.shape, array, ((step, size),))
        body, _ = builder.scopes.pop()
        finals = [tuple(_like(reg, reg.uniform) for reg in regs) for regs in loop_params]
        builder.depth.update({reg: depth - 1 for regs in finals for reg in regs})
        flat = [reg for regs in finals for reg in regs]
        op = RowLoop(
            name="loop",
            inputs=tuple(reg for rows in first for reg in rows.regs.flat),
            outputs=tuple(flat),
            length=params["length"],
            reverse=params["reverse"],
            step=step,
            params=tuple(reg for regs in loop_params for reg in regs),
            results=tuple(reg for regs in ends for reg in regs),
            body=tuple(body),
        )
        builder.scopes[-1][0].append(op)
        outputs = []
        for rows, regs in zip(first, finals, strict=True):
            grid = np.empty(rows.regs.shape, object)
            grid.reshape(-1)[:] = regs
            outputs.append(dataclasses.replace(rows, regs=grid))
        return outputs + [None] * (len(results) - parts.carries)

    def _whole(self, view: Memory) -> bool:
        variable = self.arrays[view.array]
        whole = view.shape == tuple(variable.aval.shape) and not view.terms
        return whole and view.strides == contiguous(view.shape) and not view.offset

    def _carry(self, value: Any, variable: Any) -> Rows:
        """A carry's start, with as many registers as its shape asks for."""
        shape = tuple(variable.aval.shape)
        tags = value.tags if isinstance(value, Rows) and any(value.tags) else self.builder.default_tags(shape)
        wide = next((i for i in reversed(range(len(shape))) if not tags[i] and shape[i] >= WIDE), None)
        return self._as(value, shape, tags, wide, register_type(variable.aval.dtype))

    def _as(self, value: Any, shape: tuple[int, ...], tags: Any, wide: int | None, dtype: str) -> Rows:
        rows = self.builder.rows(value, shape, tags, wide)
        for given, wanted in zip(rows.tags, tags, strict=True):
            if given not in ((), wanted):
                raise NoRule("a carry whose rows change their place")
        full = [1 if tag or i == wide else size for i, (tag, size) in enumerate(zip(tags, shape, strict=True))]
        regs: Any = np.broadcast_to(rows.regs, full).copy()
        for position in np.ndindex(*regs.shape):
            reg = regs[position]
            if wide is not None and reg.kind is not Kind.TILE:
                regs[position] = self.builder.emit("widen", (reg,), Kind.TILE, dtype, shape[wide])
        return Rows(regs, rows.dtype, shape, tags, wide)

    def _result(self, value: Any, like: Rows) -> list[Reg]:
        rows = self._as(value, like.shape, like.tags, like.wide, next(iter(like.regs.flat)).dtype)
        if not any(like.tags) and not all(reg.uniform for reg in rows.regs.flat):
            raise NoRule("a number of all rows that differs by row")
        return list(rows.regs.flat)

    def finish(
        self,
        name: str,
        outputs: Sequence[Any],
        sums: Sequence[tuple[Any, Summed]] = (),
        ops: tuple[Op, ...] | None = None,
        places: int = 0,
    ) -> Lowering:
        """The kernel of everything so far, or of some of its operations."""
        body = late_arithmetic(without_unused(tuple(self.builder.scopes[0][0]) if ops is None else ops))
        body = rare_work(body)
        used = sorted({a for op in all_ops(body) if (a := array_read(op)) is not None})
        place = {array: i for i, array in enumerate(used)}
        body = renumbered(body, place)
        inputs = tuple(self.arrays[i] for i in used)
        needed, before = set(inputs), []
        for equation, atoms in reversed(self.before):
            if not needed.isdisjoint(equation.outvars):
                before.append((equation, atoms))
                needed |= {atom for atom in atoms if not is_literal(atom)}
        shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in inputs]
        results = tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in outputs)
        kernel = Kernel(name, self.builder.space, tuple(shapes), results, places, body)
        return Lowering(kernel, inputs, tuple(reversed(before)), tuple(outputs), tuple(sums))


def lower_scan(equation: Any, name: str) -> Lowering:
    """A scan whose rounds treat every row alike, as one kernel with a loop."""
    parts = scan_parts(equation)
    inner = open_jaxpr(equation.params["jaxpr"])[0]
    carried = inner.invars[parts.constants : parts.constants + parts.carries]
    sizes = Counter(variable.aval.shape[0] for variable in carried if variable.aval.shape)
    if not sizes or inner.effects:
        raise NoRule("a loop that carries nothing per row" if not inner.effects else "effects")
    body = Body((sizes.most_common(1)[0][0],))
    views: dict[Any, Any] = {}
    values = []
    for atom in equation.invars:
        if not is_literal(atom) and atom not in views:
            views[atom] = body.memory(atom)
        values.append(body.read(atom) if is_literal(atom) else views[atom])
    outputs = [variable for variable in equation.outvars if not is_dropped(variable)]
    places = {variable: i for i, variable in enumerate(outputs)}
    stacked = [places.get(variable, -1) for variable in equation.outvars[parts.carries :]]
    results = body.loop(equation, values, stacked or (-1,) * 0)
    for variable, value in zip(equation.outvars[: parts.carries], results, strict=False):
        if variable in places:
            store(body.builder, value, tuple(variable.aval.shape), places[variable])
    return body.finish(name, outputs)


def _like(reg: Reg, uniform: bool) -> Reg:
    return Reg(reg.kind, reg.dtype, reg.width, uniform and reg.kind is Kind.ROW)
