"""Rules for sums that are kept as one summand per replica through whatever is linear, so that many become one."""

import jax.numpy as jnp
import numpy as np

from fragmenta.coordinator.partition.knowledge import distinct
from fragmenta.coordinator.partition.way import Case, Way
from fragmenta.graph.layout import PARTIAL, WHOLE


def linear(case: Case) -> Way | None:
    """How an equation with summands among its inputs gives summands, or None if it takes their sum."""
    rule = _RULES.get(case.equation.primitive.name)
    if rule is None or not rule(case):
        return None
    return Way(case.layouts, (PARTIAL,) * len(case.equation.outvars))


def _alone(case: Case) -> bool:
    """A function of the summand and of what all replicas have alike."""
    return case.layouts[0] == PARTIAL and all(layout == WHOLE for layout in case.layouts[1:])


def _terms(case: Case) -> bool:
    return all(layout == PARTIAL or case.is_zero(i) for i, layout in enumerate(case.layouts))


def _product(case: Case) -> bool:
    """By a number that is known: zero times infinity would not be the same for a summand as for the sum."""
    factors = [i for i, layout in enumerate(case.layouts) if layout != PARTIAL]
    return len(factors) == 1 and case.layouts[factors[0]] == WHOLE and _finite(case.known[factors[0]])


def _quotient(case: Case) -> bool:
    by = case.known[1]
    return _alone(case) and by is not None and _finite(by) and bool(np.all(distinct(by) != 0)) and _inexact(case)


def _finite(known: np.ndarray | None) -> bool:
    return known is not None and bool(np.all(np.isfinite(distinct(known))))


def _inexact(case: Case) -> bool:
    """Not of integers, of which a quotient is rounded down."""
    return bool(jnp.issubdtype(case.equation.invars[0].aval.dtype, jnp.inexact))


def _converted(case: Case) -> bool:
    """Into a type that holds every number of the first."""
    before, after = case.equation.invars[0].aval.dtype, case.equation.outvars[0].aval.dtype
    kinds = {jnp.issubdtype(dtype, jnp.floating) for dtype in (before, after)}
    return (
        kinds == {True}
        and jnp.finfo(after).bits >= jnp.finfo(before).bits
        and after == jnp.promote_types(before, after)
    )


def _selected(case: Case) -> bool:
    terms = all(layout == PARTIAL or case.is_zero(i) for i, layout in enumerate(case.layouts) if i)
    return case.layouts[0] == WHOLE and terms


def _padded(case: Case) -> bool:
    return _alone(case) and case.is_zero(1)


_RULES = {
    **dict.fromkeys(
        ("neg", "name", "copy", "copy_p", "reshape", "transpose", "squeeze", "expand_dims", "rev", "unstack", "tile"),
        _alone,
    ),
    **dict.fromkeys(("broadcast_in_dim", "reduce_sum", "slice", "split", "dynamic_slice", "stop_gradient"), _alone),
    **dict.fromkeys(("add", "sub", "add_any", "concatenate", "stack"), _terms),
    "mul": _product,
    "div": _quotient,
    "convert_element_type": _converted,
    "select_n": _selected,
    "pad": _padded,
}
