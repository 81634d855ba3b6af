"""Choices by platform inside a program, such as a network with a hand-made kernel for one platform.

A kernel is generated from what a choice computes where no platform is named, its default. XLA keeps the choice itself.
Both give the same results, but a differentiated choice also passes intermediate values on to its gradient, and those
differ between the platforms: no generated kernel may exchange them with the rest of the program.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from fragmenta.tracing.jaxprs import as_closed_function, inner_jaxprs, is_dropped, is_literal, open_jaxpr


def is_choice(equation: Any) -> bool:
    """Whether an equation chooses by platform, and has a default."""
    platforms = equation.params.get("branches_platforms") if equation.primitive.name == "cond" else None
    return bool(platforms) and None in platforms


def default_of(equation: Any) -> Any:
    """What a choice computes where no platform is named."""
    return equation.params["branches"][equation.params["branches_platforms"].index(None)]


def chosen_by_platform(equation: Any, branches: Sequence[Callable[..., Any]], operands: Sequence[Any]) -> list[Any]:
    """The same choice between other functions of the operands."""
    functions: dict[str, Any] = {}
    for branch, platforms in zip(branches, equation.params["branches_platforms"], strict=True):
        functions.update(dict.fromkeys(platforms or ("default",), branch))
    return list(jax.lax.platform_dependent(*operands, **functions))


def with_defaults(equations: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
    """The same equations, with the equations of its default for every choice, also inside loops; and the results that
    have another name in them."""
    flat: list[Any] = []
    renamed: dict[Any, Any] = {}

    def outside(atom: Any) -> Any:
        return atom if is_literal(atom) else renamed.get(atom, atom)

    for equation in equations:
        atoms = [outside(atom) for atom in equation.invars]
        inner = _retraced(default_of(equation)) if is_choice(equation) else None
        if inner is None or inner.constvars:
            params = _looped(equation) if equation.primitive.name == "scan" else equation.params
            flat.append(equation.replace(invars=atoms, params=params))
            continue
        names = dict(zip(inner.invars, atoms[1:], strict=True))  # the first is the index of the branch
        made = {variable for sub in inner.eqns for variable in sub.outvars}
        for outer, atom in zip(equation.outvars, inner.outvars, strict=True):
            if is_dropped(outer):
                continue
            if not is_literal(atom) and atom in made and atom not in names:
                names[atom] = outer
            else:  # an operand or a number, or given twice
                renamed[outer] = atom if is_literal(atom) else names[atom]
        for sub in inner.eqns:
            invars = [atom if is_literal(atom) else names.get(atom, atom) for atom in sub.invars]
            flat.append(sub.replace(invars=invars, outvars=[names.get(v, v) for v in sub.outvars]))
    return flat, renamed


def _retraced(closed: Any) -> Any:
    """The same open jaxpr with variables of its own; JAX may share one jaxpr between equations."""
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in open_jaxpr(closed)[0].invars]
    return jax.make_jaxpr(as_closed_function(closed))(*shapes).jaxpr


def _looped(equation: Any) -> dict[str, Any]:
    closed = equation.params["jaxpr"]
    if not any(_has_choice(sub) for sub in open_jaxpr(closed)[0].eqns):
        return equation.params
    inner = closed.jaxpr
    equations, renamed = with_defaults(inner.eqns)
    results = [atom if is_literal(atom) else renamed.get(atom, atom) for atom in inner.outvars]
    return {**equation.params, "jaxpr": closed.replace(jaxpr=inner.replace(eqns=equations, outvars=results))}


def _has_choice(equation: Any) -> bool:
    inner = (sub for item in inner_jaxprs(equation) for sub in open_jaxpr(item)[0].eqns)
    return is_choice(equation) or any(map(_has_choice, inner))


def intermediate(jaxpr: Any) -> set[Any]:
    """What choices pass on to each other, directly in a jaxpr: it may differ by platform."""
    plainly_read = {
        atom
        for e in jaxpr.eqns
        if not (is_choice(e) or any(inner_jaxprs(e)))
        for atom in e.invars
        if not is_literal(atom)
    }
    passing = (e for e in jaxpr.eqns if is_choice(e) and _one_sided_results(e))
    return {v for e in passing for v in e.outvars if v not in plainly_read}


def passes_on_elsewhere(jaxpr: Any) -> bool:
    """Whether a choice here or further inside exchanges intermediate values with other than choices beside it."""
    choices = [e for e in jaxpr.eqns if is_choice(e)]
    made = {v for e in choices for v in e.outvars}
    one_sided = {v for e in choices for v in _one_sided_results(e)}
    others = {a for e in jaxpr.eqns if not is_choice(e) for a in e.invars if not is_literal(a)}
    others |= {a for a in jaxpr.outvars if not is_literal(a)}
    if one_sided & others or any(atom not in made for e in choices for atom in _one_sided_operands(e)):
        return True
    return any(
        passes_on_elsewhere(open_jaxpr(inner)[0]) for e in jaxpr.eqns if not is_choice(e) for inner in inner_jaxprs(e)
    )


def _one_sided_results(equation: Any) -> list[Any]:
    """The results that a branch fills with a number: what only another branch's gradient reads."""
    filled: set[int] = set()
    for closed in equation.params["branches"]:
        branch = open_jaxpr(closed)[0]
        computed = set(branch.invars)
        for sub in branch.eqns:
            if not computed.isdisjoint(a for a in sub.invars if not is_literal(a)):
                computed.update(sub.outvars)
        filled |= {i for i, atom in enumerate(branch.outvars) if is_literal(atom) or atom not in computed}
    return [equation.outvars[i] for i in sorted(filled)]


def _one_sided_operands(equation: Any) -> list[Any]:
    """The operands that a branch does not read: what only another branch has passed on."""
    unread: set[int] = set()
    for closed in equation.params["branches"]:
        branch = open_jaxpr(closed)[0]
        read = {a for sub in branch.eqns for a in sub.invars if not is_literal(a)}
        read |= {a for a in branch.outvars if not is_literal(a)}
        unread |= {i for i, variable in enumerate(branch.invars) if variable not in read}
    return [a for i, a in enumerate(equation.invars[1:]) if i in unread and not is_literal(a)]
