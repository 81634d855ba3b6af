"""Decide for every equation of a program how replicas compute it.

on parts                   a rule says that each part can be computed on its own
on parts, then combined    a rule says how the results of parts are reduced, or that they are partial sums
whole, on whole inputs     every replica already holds all inputs whole
whole, on gathered inputs  no rule applies
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragmenta.coordinator.partition import control, loops
from fragmenta.coordinator.partition.block import PartitionedJaxpr, PlacedStep, Step, Taker
from fragmenta.coordinator.partition.costs import exchange, operations, taker_of
from fragmenta.coordinator.partition.knowledge import (
    Known,
    columns_of,
    distinct,
    known_columns,
    known_constant,
    known_results,
)
from fragmenta.coordinator.partition.linear import linear
from fragmenta.coordinator.partition.parts import Replica, needs_exchange
from fragmenta.coordinator.partition.rules import RULES
from fragmenta.coordinator.partition.way import Case, Way
from fragmenta.graph.exchange import Exchange, Repeated, Work
from fragmenta.graph.layout import PARTIAL, WHOLE, Layout, Split
from fragmenta.tracing import jaxprs

CONTROL: dict[str, Callable[["Partitioner", Case], Step | None]] = {
    "scan": loops.scan,
    "while": loops.while_loop,
    "cond": control.cond,
    "custom_linear_solve": control.linear_solve,
}
"""Primitives with inner jaxprs that are partitioned in turn, by rules that know how often each jaxpr runs."""

_COPIES = {"broadcast_in_dim", "transpose", "reshape", "squeeze", "expand_dims", "tile", "convert_element_type"}
"""Primitives that only rearrange, cast or repeat the entries of their input."""


class Partitioner:
    """Partitions jaxprs among `parts` replicas, and caches the results."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._blocks: dict[Any, tuple[Any, PartitionedJaxpr]] = {}

    def block(self, closed: Any, layouts: Sequence[Layout], known: Sequence[Known] = ()) -> PartitionedJaxpr:
        """How replicas compute a jaxpr whose inputs have these layouts.

        Afterwards every equation has a step whose inputs can be converted from the layouts held, and no value that is
        needed whole is left as partial sums.
        """
        known = tuple(known) or (None,) * len(layouts)
        key = id(closed), tuple(layouts), tuple(_cache_key(k) for k in known)
        if key not in self._blocks:
            early: dict[Any, Taker] = {}
            while True:
                walk = _Walk(self, closed, layouts, known, early)
                if walk.early.keys() == early.keys():
                    break
                early = walk.early
            self._blocks[key] = closed, walk.block()  # keeping the jaxpr alive keeps its id unique
        return self._blocks[key][1]

    def step(self, case: Case) -> Step:
        """How replicas compute one equation."""
        equation, layouts = case.equation, case.layouts
        name = equation.primitive.name
        called = jaxprs.called_jaxpr(equation)
        known = all(k is not None for k in case.known)
        if all(layout == WHOLE for layout in layouts) and not (called is not None and known):
            return self.whole(case)
        if called is not None:
            return control.call(self, case, called)
        if name in CONTROL:
            return CONTROL[name](self, case) or self.whole(case)
        way = self._way(case)
        return self._on_parts(case, way) if way else self.whole(case)

    def _way(self, case: Case) -> Way | None:
        if PARTIAL in case.layouts:
            linear_way = linear(case)
            if linear_way:
                return linear_way
            layouts = tuple(WHOLE if layout == PARTIAL else layout for layout in case.layouts)
            case = Case(case.equation, layouts, case.known, case.columns, case.parts)
        if not _divides_keys(case.equation):
            return None
        rule = RULES.get(case.equation.primitive.name)
        way = rule(case) if rule and any(map(case.split, range(len(case.layouts)))) else None
        if way is None:
            return None
        pairs = zip((*way.inputs, *way.outputs), (*case.equation.invars, *case.equation.outvars), strict=True)
        outputs = zip(way.outputs, case.equation.outvars, strict=True)
        if any(s == PARTIAL and v.aval.dtype == bool for s, v in outputs):  # booleans have no partial sums
            return None
        return way if all(not isinstance(s, Split) or case.fits(a.aval.shape, s) for s, a in pairs) else None

    def _on_parts(self, case: Case, way: Way) -> Step:
        equation = case.equation

        def run(replica: Replica, inputs: list[Any], _: Any) -> list[Any]:
            if way.run:
                return way.run(replica, inputs)
            results = jaxprs.bind(equation, inputs, **way.params)
            return (
                [control.combine_results(equation, result, replica) for result in results] if way.combine else results
            )

        taker = taker_of(equation)
        exchanges = tuple(exchange("reduce", v, taker) for v in equation.outvars) if way.combine else ()
        known = known_results(equation, case.known)
        work = Work(shared_out=operations(equation))
        return Step(
            way.inputs,
            way.outputs,
            run,
            exchanges,
            known=tuple(known),
            columns=known_columns(equation, case.columns),
            work=work,
            uses_index=way.run is not None,
        )

    def whole(self, case: Case) -> Step:
        """Every replica computes an equation in full."""
        equation = case.equation

        def run(_: Replica, inputs: list[Any], __: Any) -> list[Any]:
            return jaxprs.bind(equation, inputs)

        known = known_results(equation, case.known)
        columns = known_columns(equation, case.columns)
        amount = operations(equation)
        work = Work(repeated=(Repeated(*taker_of(equation), amount),) if amount else ())
        inputs, outputs = (WHOLE,) * len(case.layouts), (WHOLE,) * len(equation.outvars)
        return Step(inputs, outputs, run, known=tuple(known), columns=columns, work=work)


class _Walk:
    """One pass over the equations of a jaxpr. Values in `early` become whole where they are computed: partial sums are
    added up there, and copies are computed from a gathered input instead of being gathered themselves."""

    def __init__(
        self,
        partitioner: Partitioner,
        closed: Any,
        layouts: Sequence[Layout],
        known: Sequence[Known],
        early: dict[Any, Taker],
    ) -> None:
        self.partitioner, self.early = partitioner, dict(early)
        self.jaxpr, self.constants = jaxprs.open_jaxpr(closed)
        self.inputs = tuple(layouts)
        self.layouts: dict[Any, Layout] = dict(zip(self.jaxpr.invars, layouts, strict=True))
        self.known: dict[Any, Known] = dict(zip(self.jaxpr.invars, known, strict=True))
        self.columns: dict[Any, tuple[Known, ...]] = {}
        self.places = {variable: i for i, variable in enumerate(self.jaxpr.invars)}
        self.gathered: set[Any] = set()
        self.makers: dict[Any, Any] = {}
        self.whole: dict[int, Taker] = {}
        self.exchanges: list[Exchange] = []
        self.steps: list[PlacedStep] = []
        self.uses_index = False
        self.work = Work()
        for variable, value in zip(self.jaxpr.constvars, self.constants, strict=True):
            self.layouts[variable], self.known[variable] = WHOLE, known_constant(value, variable.aval)
        for equation in self.jaxpr.eqns:
            self._equation(equation)

    def block(self) -> PartitionedJaxpr:
        outputs = tuple(self._layout(atom) for atom in self.jaxpr.outvars)
        return PartitionedJaxpr(
            self.jaxpr,
            self.constants,
            self.inputs,
            tuple(self.steps),
            outputs,
            tuple(self._known(atom) for atom in self.jaxpr.outvars),
            tuple(self.exchanges),
            self.whole,
            self.uses_index,
            self.work,
        )

    def _equation(self, equation: Any) -> None:
        atoms = equation.invars
        known = tuple(self._known(atom) for atom in atoms)
        columns = tuple(
            columns_of(k, atom.aval)
            if k is not None
            else self.columns.get(atom, columns_of(None, atom.aval))
            if not jaxprs.is_literal(atom)
            else ()
            for atom, k in zip(atoms, known, strict=True)
        )
        layouts = tuple(self._layout(atom) for atom in atoms)
        case = Case(equation, layouts, known, columns, self.partitioner.parts)
        copies = equation.primitive.name in _COPIES and equation.outvars[0] in self.early
        step = self.partitioner.whole(case) if copies else self.partitioner.step(case)
        for i, (atom, now, target) in enumerate(zip(atoms, layouts, step.inputs, strict=True)):
            self.uses_index |= now != target and target != WHOLE
            if needs_exchange(now, target) or (i in step.whole and now != WHOLE):
                default_taker = self.early[equation.outvars[0]] if copies else taker_of(equation)
                self._take_whole(atom, now, step.whole.get(i) or default_taker)
        output_layouts = []
        for variable, layout in zip(equation.outvars, step.outputs, strict=True):
            self.makers[variable] = equation
            if layout == PARTIAL and variable in self.early:
                self.exchanges.append(exchange("sum", variable, taker_of(equation)))
                layout = WHOLE
            output_layouts.append(layout)
            self.layouts[variable] = layout
        for variable, value in zip(equation.outvars, step.known, strict=False):
            self.known[variable] = value
        if step.columns:
            self.columns[equation.outvars[0]] = step.columns
        self.exchanges += step.exchanges
        self.uses_index |= step.uses_index
        self.work += step.work
        self.steps.append(PlacedStep(equation, step, tuple(output_layouts)))

    def _take_whole(self, atom: Any, now: Layout, taker: Taker) -> None:
        if atom in self.places:
            self.whole.setdefault(self.places[atom], taker)
        elif now == PARTIAL or self._is_copy(atom):
            self.early.setdefault(atom, taker)
        elif atom not in self.gathered:
            self.gathered.add(atom)
            self.exchanges.append(exchange("gather", atom, taker))

    def _is_copy(self, atom: Any) -> bool:
        """Whether a value is a rearranged or repeated copy of one that is no larger."""
        maker = self.makers[atom]
        return maker.primitive.name in _COPIES and maker.invars[0].aval.size <= atom.aval.size

    def _layout(self, atom: Any) -> Layout:
        return WHOLE if jaxprs.is_literal(atom) else self.layouts[atom]

    def _known(self, atom: Any) -> Known:
        return known_constant(atom.val, atom.aval) if jaxprs.is_literal(atom) else self.known.get(atom)


def _divides_keys(equation: Any) -> bool:
    """Whether an equation may be split by keys: with JAX's other generators the numbers depend on the batch of keys."""
    if not equation.primitive.name.startswith("random_"):
        return True
    keys = [v.aval.dtype for v in (*equation.invars, *equation.outvars) if jaxprs.key_dtype(v.aval.dtype)]
    return all(jaxprs.key_generator(dtype) == "threefry2x32" for dtype in keys)


def _cache_key(known: Known) -> Any:
    return None if known is None else (known.shape, known.dtype.str, np.ascontiguousarray(distinct(known)).tobytes())
