"""Decide for every equation of a program how replicas compute it.

on parts                    a rule says that it is the same along the parts
on parts, then combined     a rule says how results of parts make one, or that they are summands of it
whole, from what is shared  all inputs are the same for all replicas
whole, on gathered inputs   no rule says otherwise
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragmenta.coordinator.partition import control, loops
from fragmenta.coordinator.partition.block import Block, Placed, Step, Taker
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
from fragmenta.coordinator.partition.parts import Replica, meets
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
"""What has jaxprs of its own that are walked, each by a rule that knows how often it runs them."""

_COPIES = {"broadcast_in_dim", "transpose", "reshape", "squeeze", "expand_dims", "tile", "convert_element_type"}
"""What makes a value of another one's entries, or several of each."""


class Partitioner:
    """Partitions jaxprs among `parts` replicas; remembers what it has decided."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self._found: dict[Any, tuple[Any, Block]] = {}

    def block(self, closed: Any, layouts: Sequence[Layout], known: Sequence[Known] = ()) -> Block:
        """How replicas compute a jaxpr whose inputs they hold so.

        Afterwards every equation has a step whose inputs can be had from what is held, and no sum that is needed whole
        is kept in summands.
        """
        known = tuple(known) or (None,) * len(layouts)
        key = id(closed), tuple(layouts), tuple(_name(k) for k in known)
        if key not in self._found:
            early: dict[Any, Taker] = {}
            while True:
                walk = _Walk(self, closed, layouts, known, early)
                if walk.early.keys() == early.keys():
                    break
                early = walk.early
            self._found[key] = closed, walk.block()  # the jaxpr is kept, so that its id stays its own
        return self._found[key][1]

    def step(self, case: Case) -> Step:
        """How replicas do one equation."""
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
            kept = linear(case)
            if kept:
                return kept
            layouts = tuple(WHOLE if layout == PARTIAL else layout for layout in case.layouts)
            case = Case(case.equation, layouts, case.known, case.columns, case.parts)
        if not _divides_keys(case.equation):
            return None
        rule = RULES.get(case.equation.primitive.name)
        way = rule(case) if rule and any(map(case.split, range(len(case.layouts)))) else None
        if way is None:
            return None
        fitting = zip((*way.inputs, *way.outputs), (*case.equation.invars, *case.equation.outvars), strict=True)
        whole = zip(way.outputs, case.equation.outvars, strict=True)
        if any(s == PARTIAL and v.aval.dtype == bool for s, v in whole):  # what is true for several is not their sum
            return None
        return way if all(not isinstance(s, Split) or case.fits(a.aval.shape, s) for s, a in fitting) else None

    def _on_parts(self, case: Case, way: Way) -> Step:
        equation = case.equation

        def run(replica: Replica, inputs: list[Any], _: Any) -> list[Any]:
            if way.run:
                return way.run(replica, inputs)
            results = jaxprs.bind(equation, inputs, **way.params)
            return [control.combined(equation, result, replica) for result in results] if way.combine else results

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
        """Every replica does all of an equation."""
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
    """One pass over the equations of a jaxpr. What is in `early` is made whole where it is made: sums are combined, and
    copies are made of what was gathered, not gathered themselves."""

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
        self.held: dict[Any, Layout] = dict(zip(self.jaxpr.invars, layouts, strict=True))
        self.known: dict[Any, Known] = dict(zip(self.jaxpr.invars, known, strict=True))
        self.columns: dict[Any, tuple[Known, ...]] = {}
        self.places = {variable: i for i, variable in enumerate(self.jaxpr.invars)}
        self.gathered: set[Any] = set()
        self.makers: dict[Any, Any] = {}
        self.whole: dict[int, Taker] = {}
        self.exchanges: list[Exchange] = []
        self.steps: list[Placed] = []
        self.uses_index = False
        self.work = Work()
        for variable, value in zip(self.jaxpr.constvars, self.constants, strict=True):
            self.held[variable], self.known[variable] = WHOLE, known_constant(value, variable.aval)
        for equation in self.jaxpr.eqns:
            self._equation(equation)

    def block(self) -> Block:
        outputs = tuple(self._layout(atom) for atom in self.jaxpr.outvars)
        return Block(
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
        for i, (atom, now, wanted) in enumerate(zip(atoms, layouts, step.inputs, strict=True)):
            self.uses_index |= now != wanted and wanted != WHOLE
            if meets(now, wanted) or (i in step.whole and now != WHOLE):
                for_others = self.early[equation.outvars[0]] if copies else taker_of(equation)
                self._take_whole(atom, now, step.whole.get(i) or for_others)
        kept = []
        for variable, layout in zip(equation.outvars, step.outputs, strict=True):
            self.makers[variable] = equation
            if layout == PARTIAL and variable in self.early:
                self.exchanges.append(exchange("sum", variable, taker_of(equation)))
                layout = WHOLE
            kept.append(layout)
            self.held[variable] = layout
        for variable, found in zip(equation.outvars, step.known, strict=False):
            self.known[variable] = found
        if step.columns:
            self.columns[equation.outvars[0]] = step.columns
        self.exchanges += step.exchanges
        self.uses_index |= step.uses_index
        self.work += step.work
        self.steps.append(Placed(equation, step, tuple(kept)))

    def _take_whole(self, atom: Any, now: Layout, taker: Taker) -> None:
        if atom in self.places:
            self.whole.setdefault(self.places[atom], taker)
        elif now == PARTIAL or self._is_copy(atom):
            self.early.setdefault(atom, taker)
        elif atom not in self.gathered:
            self.gathered.add(atom)
            self.exchanges.append(exchange("gather", atom, taker))

    def _is_copy(self, atom: Any) -> bool:
        """Whether it is made of something no larger, only by moving and copying."""
        maker = self.makers[atom]
        return maker.primitive.name in _COPIES and maker.invars[0].aval.size <= atom.aval.size

    def _layout(self, atom: Any) -> Layout:
        return WHOLE if jaxprs.is_literal(atom) else self.held[atom]

    def _known(self, atom: Any) -> Known:
        return known_constant(atom.val, atom.aval) if jaxprs.is_literal(atom) else self.known.get(atom)


def _divides_keys(equation: Any) -> bool:
    """Whether an equation draws for each key alone: JAX's other generators draw otherwise for several keys at once."""
    if not equation.primitive.name.startswith("random_"):
        return True
    keys = [v.aval.dtype for v in (*equation.invars, *equation.outvars) if jaxprs.key_dtype(v.aval.dtype)]
    return all(jaxprs.key_generator(dtype) == "threefry2x32" for dtype in keys)


def _name(known: Known) -> Any:
    return None if known is None else (known.shape, known.dtype.str, np.ascontiguousarray(distinct(known)).tobytes())
