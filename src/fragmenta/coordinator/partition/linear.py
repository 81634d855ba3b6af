"""Rules that carry partial sums through linear operations, so that many exchanges become one."""

import jax.numpy as jnp
import numpy as np

from fragmenta.coordinator.partition.knowledge import distinct
from fragmenta.coordinator.partition.way import Case, Way
from fragmenta.graph.layout import PARTIAL, WHOLE


def linear(case: Case) -> Way | None:
    """How an equation with partial sums among its inputs returns partial sums, or None if it needs them added up."""
    rule = _RULES.get(case.equation.primitive.name)
    if rule is None or not rule(case):
        return None
    return Way(case.layouts, (PARTIAL,) * len(case.equation.outvars))


def _only_first(case: Case) -> bool:
    """Only the first input is a partial sum; all others are whole."""
    return case.layouts[0] == PARTIAL and all(layout == WHOLE for layout in case.layouts[1:])


def _terms(case: Case) -> bool:
    return all(layout == PARTIAL or case.is_zero(i) for i, layout in enumerate(case.layouts))


def _product(case: Case) -> bool:
    """The factor must be known to be finite: with an infinite one, the sum of products can be NaN where the product of
    the sum is not."""
    factors = [i for i, layout in enumerate(case.layouts) if layout != PARTIAL]
    return len(factors) == 1 and case.layouts[factors[0]] == WHOLE and _finite(case.known[factors[0]])


def _quotient(case: Case) -> bool:
    divisor = case.known[1]
    return (
        _only_first(case)
        and divisor is not None
        and _finite(divisor)
        and bool(np.all(distinct(divisor) != 0))
        and _inexact(case)
    )


def _finite(known: np.ndarray | None) -> bool:
    return known is not None and bool(np.all(np.isfinite(distinct(known))))


def _inexact(case: Case) -> bool:
    """Floating point, because integer division rounds."""
    return bool(jnp.issubdtype(case.equation.invars[0].aval.dtype, jnp.inexact))


def _conversion(case: Case) -> bool:
    """A conversion to a floating-point type that represents every value of the first exactly."""
    before, after = case.equation.invars[0].aval.dtype, case.equation.outvars[0].aval.dtype
    kinds = {jnp.issubdtype(dtype, jnp.floating) for dtype in (before, after)}
    return (
        kinds == {True}
        and jnp.finfo(after).bits >= jnp.finfo(before).bits
        and after == jnp.promote_types(before, after)
    )


def _selection(case: Case) -> bool:
    terms = all(layout == PARTIAL or case.is_zero(i) for i, layout in enumerate(case.layouts) if i)
    return case.layouts[0] == WHOLE and terms


def _padding(case: Case) -> bool:
    return _only_first(case) and case.is_zero(1)


_RULES = {
    **dict.fromkeys(
        ("neg", "name", "copy", "copy_p", "reshape", "transpose", "squeeze", "expand_dims", "rev", "unstack", "tile"),
        _only_first,
    ),
    **dict.fromkeys(
        ("broadcast_in_dim", "reduce_sum", "slice", "split", "dynamic_slice", "stop_gradient"), _only_first
    ),
    **dict.fromkeys(("add", "sub", "add_any", "concatenate", "stack"), _terms),
    "mul": _product,
    "div": _quotient,
    "convert_element_type": _conversion,
    "select_n": _selection,
    "pad": _padding,
}
