"""JAX's traced programs, behind functions that hide how they differ between its versions.

Only this module, `trace`, `spread` and `flat` look inside a jaxpr.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun  # pyright: ignore[reportPrivateImportUsage]

from fragmenta.stage import MARK_PREFIX, ROWS_PREFIX, STAGE_PREFIX, mark_p

CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "custom_jvp_call", "custom_vjp_call")
"""Primitives that only call the jaxpr inside them, with the same arguments."""
Equation = Any
Jaxpr = Any


class ScanParts(NamedTuple):
    """How the arguments and results of a scan are grouped."""

    constants: int
    carries: int


class Origin(NamedTuple):
    """Where a node comes from: its equation, and the variables behind the node's inputs and outputs."""

    equation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def is_literal(atom: Any) -> bool:
    """Whether an equation's input is a constant written into it."""
    return isinstance(atom, Literal)


def is_dropped(variable: Any) -> bool:
    """Whether an equation's output is ignored."""
    return type(variable).__name__ == "DropVar"


def open_jaxpr(jaxpr: Any) -> tuple[Jaxpr, tuple[Any, ...]]:
    """The jaxpr and its constants, of a closed or an open one."""
    return getattr(jaxpr, "jaxpr", jaxpr), tuple(getattr(jaxpr, "consts", ()) or ())


def inner_jaxprs(equation: Equation) -> Iterator[Any]:
    """All jaxprs among the parameters of an equation."""
    for parameter in equation.params.values():
        for item in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                yield item


def called_jaxpr(equation: Equation) -> Any | None:
    """The jaxpr that an equation merely calls (jit, remat, custom derivatives), or None."""
    if equation.primitive.name not in CALLS:
        return None
    return next(inner_jaxprs(equation))


def scan_parts(equation: Equation) -> ScanParts:
    """The groups of a scan's arguments: jax 0.11 replaced the counts by trees of groups."""
    if "num_carry" in equation.params:
        return ScanParts(equation.params["num_consts"], equation.params["num_carry"])
    constants, carries, _ = (len(group) for group in equation.params["ft_in"].unpack())
    return ScanParts(constants, carries)


def stage_name(equation: Equation) -> str | None:
    """The stage that an equation calls, or None."""
    name = equation.params.get("name")
    return name.removeprefix(STAGE_PREFIX) if isinstance(name, str) and name.startswith(STAGE_PREFIX) else None


class MarkParts(NamedTuple):
    """A mark in a jaxpr: the operation, the axis of replicas it is over (None for any), the dimension that a gather
    joins along, what goes in, how often it runs."""

    op: str
    over: str | None
    axis: int
    aval: Any
    times: int


def collective_name(equation: Equation) -> str | None:
    """`mean`, `sum` or `gather` if an equation is a mark over an axis that is bound, else None."""
    name = equation.params.get("name")
    return name.removeprefix(MARK_PREFIX) if isinstance(name, str) and name.startswith(MARK_PREFIX) else None


def mark(equation: Equation) -> MarkParts | None:
    """The mark that an equation is, or None."""
    if equation.primitive is mark_p:
        params = equation.params
        return MarkParts(params["op"], params["over"], params["axis"], equation.invars[0].aval, 1)
    op = collective_name(equation)
    return MarkParts(op, None, 0, equation.invars[0].aval, 1) if op else None


def marks_within(equation: Equation) -> list[MarkParts]:
    """All marks inside an equation, itself included; one in a scan counts as often as the scan goes round."""
    found = mark(equation)
    if found:
        return [found]
    rounds = equation.params["length"] if equation.primitive.name == "scan" else 1
    inside = [m for inner in inner_jaxprs(equation) for sub in open_jaxpr(inner)[0].eqns for m in marks_within(sub)]
    return [m._replace(times=m.times * rounds) for m in inside]


def is_row_wise(equation: Equation) -> bool:
    """Whether an equation calls a function, or the derivative of one, that is declared to work row by row."""
    name = equation.params.get("name")
    return isinstance(name, str) and name.startswith(ROWS_PREFIX)


def stages_within(equation: Equation) -> tuple[str, ...]:
    """Every stage called by the jaxprs inside an equation, at any depth, in order of first call."""
    found: dict[str, None] = {}
    for inner in inner_jaxprs(equation):
        for sub in open_jaxpr(inner)[0].eqns:
            name = stage_name(sub)
            found.update(dict.fromkeys(((name,) if name else ()) + stages_within(sub)))
    return tuple(found)


def as_function(jaxpr: Jaxpr, equation: Equation) -> tuple[list[Any], list[Any], Any]:
    """One equation as a function: the input variables it depends on, its used outputs, and the function between them.

    Arguments that a called function ignores are left out, so that nobody sends them.
    """
    inputs: list[Any] = list(dict.fromkeys(atom for atom in equation.invars if isinstance(atom, Var)))
    outputs = [variable for variable in equation.outvars if not is_dropped(variable)]
    debug_info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    single = type(jaxpr)([], inputs, outputs, [equation], equation.effects, debug_info)
    function = jaxpr_as_fun(ClosedJaxpr(single, []))
    ignored = _ignored(equation)
    if not ignored:
        return inputs, outputs, function

    def apply(*used: Any) -> list[Any]:
        arguments = iter(used)
        return function(*(blank(v.aval.shape, v.aval.dtype) if v in ignored else next(arguments) for v in inputs))

    return [v for v in inputs if v not in ignored], outputs, apply


def host_function(equation: Equation, inputs: list[Any], outputs: list[Any]) -> Any | None:
    """What a call does as a function of numpy arrays, if all that it does is one callback; else None.

    It takes the values of the variables `inputs` and gives those of `outputs`.
    """
    called = called_jaxpr(equation)
    inner = open_jaxpr(called)[0] if called is not None else None
    if inner is None or [sub.primitive.name for sub in inner.eqns] not in (["pure_callback"], ["io_callback"]):
        return None
    (callback,) = inner.eqns
    outside = dict(zip(inner.invars, equation.invars, strict=True))
    if not all(is_literal(atom) or atom in outside for atom in callback.invars):
        return None
    arguments = [atom if is_literal(atom) else outside[atom] for atom in callback.invars]
    places = {variable: i for i, variable in enumerate(callback.outvars)}
    inside = dict(zip(equation.outvars, inner.outvars, strict=True))
    taken = [places[inside[variable]] for variable in outputs]
    function = callback.params["callback"]

    def run(*arrays: Any) -> list[Any]:
        known = dict(zip(inputs, arrays, strict=True))
        results = function(*(atom.val if is_literal(atom) else known[atom] for atom in arguments))
        return [results[i] for i in taken]

    return run


def forwarded(equation: Equation) -> dict[Any, Any]:
    """Outputs of a call that are just one of its inputs: output variable to input variable."""
    called = called_jaxpr(equation)
    if called is None:
        return {}
    inner = open_jaxpr(called)[0]
    outside = dict(zip(inner.invars, equation.invars, strict=True))
    pairs = zip(equation.outvars, inner.outvars, strict=True)
    return {
        outer: outside[atom]
        for outer, atom in pairs
        if not is_literal(atom) and isinstance(outside.get(atom), Var) and not is_dropped(outer)
    }


def blank(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """An array whose content does not matter."""
    if key_dtype(dtype):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, dtype))
        return jax.random.wrap_key_data(jnp.zeros(data.shape, data.dtype))
    return jnp.zeros(shape, dtype)


def _ignored(equation: Equation) -> set[Any]:
    called = called_jaxpr(equation)
    if called is None:
        return set()
    inner = open_jaxpr(called)[0]
    used = {atom for sub in inner.eqns for atom in sub.invars if isinstance(atom, Var)}
    used |= {atom for atom in inner.outvars if isinstance(atom, Var)}
    pairs = [(o, i) for o, i in zip(equation.invars, inner.invars, strict=True) if isinstance(o, Var)]
    needed = {outer for outer, inside in pairs if inside in used}
    return {outer for outer, _ in pairs} - needed


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """What the traced function calls its inputs; empty strings where JAX does not know."""
    inner = open_jaxpr(jaxpr)[0]
    names = inner.debug_info.arg_names
    return tuple(name or "" for name in names) if names else ("",) * len(inner.invars)


def result_names(jaxpr: Any) -> tuple[str, ...]:
    """Paths of the outputs in what the traced function returns; empty strings where JAX does not know."""
    inner = open_jaxpr(jaxpr)[0]
    paths = inner.debug_info.result_paths
    return tuple(path or "" for path in paths) if paths else ("",) * len(inner.outvars)


def key_dtype(dtype: Any) -> bool:
    """Whether arrays of this type hold PRNG keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)
