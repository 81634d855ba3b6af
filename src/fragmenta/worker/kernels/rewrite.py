"""A program with kernels in it: loops and chains of equations that treat every row alike, each replaced by one call."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.tracing.jaxprs import bind, is_literal, open_jaxpr, scan_parts
from fragmenta.worker.kernels.chain import lower_chain, spaces
from fragmenta.worker.kernels.ir import Kernel
from fragmenta.worker.kernels.lower import Lowering, lower_scan
from fragmenta.worker.kernels.platforms import intermediate, passes_on_elsewhere, with_defaults
from fragmenta.worker.kernels.values import NoRule

Call = Callable[[Sequence[Any]], list[Any]]
"""A kernel as a function of arrays: its outputs, then its sums over rows."""
Prepare = Callable[[Kernel], Call]
"""Makes a kernel ready to be called, or raises NoRule: it does not fit the device, say."""


@dataclasses.dataclass(frozen=True)
class Replaceable:
    """Equations, and the kernels that can take their place."""

    equations: tuple[Any, ...]
    kernels: tuple[Lowering, ...]
    outputs: tuple[Any, ...]
    """The variables that either of them computes."""
    tail: tuple[Any, ...] = ()
    """Equations that follow the kernels."""

    @property
    def inputs(self) -> list[Any]:
        """The variables that either of them reads."""
        read = [atom for equation in self.equations for atom in equation.invars]
        made = {variable for equation in self.equations for variable in equation.outvars}
        for lowering in self.kernels:
            read += [atom for _, atoms in lowering.before for atom in atoms]
            read += lowering.inputs
            made |= {variable for equation, _ in lowering.before for variable in equation.outvars}
        return list(dict.fromkeys(atom for atom in read if not is_literal(atom) and atom not in made))

    def plain(self, *arrays: Any) -> tuple[Any, ...]:
        """The outputs as XLA computes them."""
        known = dict(zip(self.inputs, arrays, strict=True))
        run(self.equations, known)
        return tuple(known[variable] for variable in self.outputs)

    def with_kernels(self, prepare: Prepare) -> Callable[..., tuple[Any, ...]]:
        """The same with kernels, as a function."""
        calls = [prepare(lowering.kernel) for lowering in self.kernels]

        def function(*arrays: Any) -> tuple[Any, ...]:
            known = dict(zip(self.inputs, arrays, strict=True))
            for lowering, call in zip(self.kernels, calls, strict=True):
                known.update(called(lowering, call, known))
            run(self.tail, known)
            return tuple(known[variable] for variable in self.outputs)

        return function


@dataclasses.dataclass(frozen=True)
class Taken:
    """How to prepare the kernels of a part, and what to say about it."""

    prepare: Prepare
    remark: str = ""


Choose = Callable[[Replaceable], Taken]
"""Chooses for a part; raises NoRule if XLA is to keep it."""


@dataclasses.dataclass
class Report:
    """What became kernels, and why the rest did not."""

    kernels: list[Kernel] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)
    reasons: list[str] = dataclasses.field(default_factory=list)

    def add(self, kernels: Sequence[Kernel], remark: str) -> None:
        """Note kernels that take the place of a part."""
        self.kernels += kernels
        if remark:
            self.remarks.append(f"{', '.join(kernel.name for kernel in kernels)}: {remark}")

    def refuse(self, reason: str) -> None:
        """Say why there is no kernel after all."""
        self.kernels.clear()
        self.remarks.clear()
        self.reasons[:] = [reason]


class Rewriter:
    """Evaluates a plain jaxpr, with kernels for what can be one."""

    def __init__(self, choose: Choose, report: Report, closed: Any) -> None:
        self.choose, self.report, self.closed = choose, report, closed
        self.keeps_choices = passes_on_elsewhere(open_jaxpr(closed)[0])
        if self.keeps_choices:
            report.reasons.append("a choice by platform, whose gradient is elsewhere")
        self.hidden: set[Any] = set()
        """What may differ by platform."""

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of the program."""
        return self._evaluate(self.closed, arrays)

    def _evaluate(self, closed: Any, arrays: Sequence[Any]) -> list[Any]:
        jaxpr, constants = open_jaxpr(closed)
        self.hidden |= intermediate(jaxpr)
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        known.update(zip(jaxpr.invars, arrays, strict=True))

        self._run(jaxpr.eqns, jaxpr.outvars, known, [])
        return [atom.val if is_literal(atom) else known[atom] for atom in jaxpr.outvars]

    def _run(
        self, equations: Sequence[Any], outputs: Sequence[Any], known: dict[Any, Any], tried: Sequence[tuple[int, ...]]
    ) -> None:
        """Evaluate equations, those that treat rows alike as kernels; `tried` are spaces of rows looked at before."""
        flat = self._flat(equations)
        for space in spaces(flat):
            if space in tried:
                continue
            tried = [*tried, space]
            try:
                name = f"rows{len(self.report.kernels)}"
                chain = lower_chain(flat, outputs, space, name, equations, self.hidden)
                choice = self.choose(Replaceable(chain.replaced, chain.kernels, chain.results, chain.tail))
                calls = [choice.prepare(lowering.kernel) for lowering in chain.kernels]
            except NoRule as error:
                self.report.reasons.append(f"{' x '.join(map(str, space))} rows: {error}")
                continue
            needed = [variable for kernel in chain.kernels for variable in kernel.inputs]
            after = [atom for equation in chain.after for atom in equation.invars]
            self._run(chain.before, [*needed, *after, *outputs], known, tried)
            self.report.add([lowering.kernel for lowering in chain.kernels], choice.remark)
            for lowering, call in zip(chain.kernels, calls, strict=True):
                known.update(called(lowering, call, known))
            run(chain.tail, known)
            self._run(chain.after, outputs, known, tried)
            return
        for equation in equations:
            if equation.primitive.name == "scan":
                results = self._scan(equation, known)
            else:
                results = bind(equation, _values(equation.invars, known))
            known.update(zip(equation.outvars, results, strict=True))

    def _flat(self, equations: Sequence[Any]) -> Sequence[Any]:
        return equations if self.keeps_choices else with_defaults(equations)[0]

    def _scan(self, equation: Any, known: dict[Any, Any]) -> list[Any]:
        try:
            lowering = lower_scan(self._flat([equation])[0], f"loop{len(self.report.kernels)}")
            choice = self.choose(Replaceable((equation,), (lowering,), lowering.outputs))
            call = choice.prepare(lowering.kernel)
        except NoRule as error:
            self.report.reasons.append(f"loop x{equation.params['length']}: {error}")
            return self._plain_scan(equation, _values(equation.invars, known))
        self.report.add([lowering.kernel], choice.remark)
        values = called(lowering, call, known)
        # An output that nothing reads has no variable of its own.
        return [values.get(variable) for variable in equation.outvars]

    def _plain_scan(self, equation: Any, values: list[Any]) -> list[Any]:
        parts, params = scan_parts(equation), equation.params
        fixed, end = values[: parts.constants], parts.constants + parts.carries

        def body(carry: Any, slices: Any) -> tuple[Any, Any]:
            results = self._evaluate(params["jaxpr"], [*fixed, *carry, *slices])
            return results[: parts.carries], results[parts.carries :]

        starts = [jnp.asarray(x) for x in values[parts.constants : end]]
        options = {"length": params["length"], "reverse": params["reverse"], "unroll": params["unroll"]}
        last, stacked = jax.lax.scan(body, starts, values[end:], **options)
        return [*last, *stacked]


def called(lowering: Lowering, call: Call, known: dict[Any, Any]) -> dict[Any, Any]:
    """What a kernel computes, by variable."""
    inner = dict(known)
    for equation, atoms in lowering.before:
        inner.update(zip(equation.outvars, bind(equation, _values(atoms, inner)), strict=True))
    results = call([jnp.asarray(inner[variable]) for variable in lowering.inputs])
    made = dict(zip(lowering.outputs, results, strict=False))
    for variable, summed in lowering.sums:
        part = results[-1][summed.offset : summed.offset + variable.aval.size]
        made[variable] = part.reshape(variable.aval.shape).astype(variable.aval.dtype)
    return made


def run(equations: Sequence[Any], known: dict[Any, Any]) -> None:
    """Evaluate equations and note their results."""
    for equation in equations:
        known.update(zip(equation.outvars, bind(equation, _values(equation.invars, known)), strict=True))


def _values(atoms: Sequence[Any], known: dict[Any, Any]) -> list[Any]:
    return [atom.val if is_literal(atom) else known[atom] for atom in atoms]
