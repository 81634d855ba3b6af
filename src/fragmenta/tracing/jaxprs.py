"""Access to jaxprs, through functions that hide the differences between JAX versions.

Only this module, `trace`, `flat`, `coordinator.partition`, `coordinator.fingerprint` and `evaluation.onnx_model` look
inside a jaxpr.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax._src import source_info_util  # no public API gives the user's source line of an equation
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun  # pyright: ignore[reportPrivateImportUsage]

from fragmenta.stage import PER_ENVIRONMENT, STAGE_PREFIX, stage

CALLS = (
    *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call", "composite"),
)
"""Primitives that only call the jaxpr inside them, with the same arguments."""
Equation = Any
Jaxpr = Any


class ScanParts(NamedTuple):
    """How many of a scan's arguments are constants and carries."""

    constants: int
    carries: int


class Origin(NamedTuple):
    """Where a node comes from: its equation, the variables of the node's inputs and outputs, and a jaxpr of that
    equation alone, which may have unused inputs and outputs that are forwarded inputs."""

    equation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    closed: Any


def is_literal(atom: Any) -> bool:
    """Whether an equation's input is a literal."""
    return isinstance(atom, Literal)


def is_dropped(variable: Any) -> bool:
    """Whether an equation's output is ignored."""
    return type(variable).__name__ == "DropVar"


def open_jaxpr(jaxpr: Any) -> tuple[Jaxpr, tuple[Any, ...]]:
    """The open jaxpr and its constants, given a closed or an open jaxpr."""
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
    """The groups of a scan's arguments. jax 0.11 replaced the counts by trees of groups."""
    if "num_carry" in equation.params:
        return ScanParts(equation.params["num_consts"], equation.params["num_carry"])
    constants, carries, _ = (len(group) for group in equation.params["ft_in"].unpack())
    return ScanParts(constants, carries)


def stage_name(equation: Equation) -> str | None:
    """The stage that an equation calls, or None."""
    name = equation.params.get("name")
    return name.removeprefix(STAGE_PREFIX) if isinstance(name, str) and name.startswith(STAGE_PREFIX) else None


def stages_within(equation: Equation) -> tuple[str, ...]:
    """Every stage called by the jaxprs inside an equation, at any depth, in order of first call."""
    names: dict[str, None] = {}
    for inner in inner_jaxprs(equation):
        for sub in open_jaxpr(inner)[0].eqns:
            name = stage_name(sub)
            names.update(dict.fromkeys(((name,) if name else ()) + stages_within(sub)))
    return tuple(names)


def size_of(equation: Equation) -> int:
    """How many primitives an equation consists of, at any depth."""
    return max(1, sum(size_of(sub) for inner in inner_jaxprs(equation) for sub in open_jaxpr(inner)[0].eqns))


def as_function(jaxpr: Jaxpr, equation: Equation) -> tuple[list[Any], list[Any], Any, Any]:
    """The input variables that an equation depends on, its used outputs, and the equation as a jaxpr and as a function.

    Arguments that a called function ignores are left out, so that they are never sent.
    """
    inputs: list[Any] = list(dict.fromkeys(atom for atom in equation.invars if isinstance(atom, Var)))
    outputs = [variable for variable in equation.outvars if not is_dropped(variable)]
    debug_info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    single = type(jaxpr)([], inputs, outputs, [equation], equation.effects, debug_info)
    closed = ClosedJaxpr(single, [])
    function = jaxpr_as_fun(closed)
    ignored = _ignored(equation)
    if not ignored:
        return inputs, outputs, closed, function

    def apply(*used_arguments: Any) -> list[Any]:
        arguments = iter(used_arguments)
        return function(*(blank(v.aval.shape, v.aval.dtype) if v in ignored else next(arguments) for v in inputs))

    return [v for v in inputs if v not in ignored], outputs, closed, apply


def bind(equation: Equation, values: list[Any], **replaced_params: Any) -> list[Any]:
    """Evaluate an equation on other values, with some of its parameters replaced."""
    bind_params: Any = equation.primitive.get_bind_params(equation.params)
    # jax 0.11 returns parameters only, without functions
    functions, params = bind_params if isinstance(bind_params, tuple) else ((), bind_params)
    results = equation.primitive.bind(*functions, *values, **{**params, **replaced_params})
    return list(results) if equation.primitive.multiple_results else [results]


def as_closed_function(closed: Any) -> Any:
    """A closed jaxpr as a function from its inputs to the list of its outputs."""
    return jaxpr_as_fun(closed)


def source_line(equation: Equation) -> str:
    """The user's file and line that an equation comes from, or an empty string."""
    frames = source_info_util.user_frames(equation.source_info.traceback)
    frame = next((frame for frame in frames if frame.file_name != stage.__code__.co_filename), None)
    return f"{os.path.basename(frame.file_name)}:{frame.start_line}" if frame else ""


def host_function(equation: Equation, inputs: list[Any], outputs: list[Any]) -> tuple[Any | None, bool]:
    """A call that consists of a single callback, as a function of NumPy arrays from `inputs` to `outputs`, else None;
    and whether the callback treats environments independently.
    """
    called = called_jaxpr(equation)
    inner = open_jaxpr(called)[0] if called is not None else None
    if inner is None or [sub.primitive.name for sub in inner.eqns] not in (["pure_callback"], ["io_callback"]):
        return None, False
    (callback,) = inner.eqns
    outside = dict(zip(inner.invars, equation.invars, strict=True))
    if not all(is_literal(atom) or atom in outside for atom in callback.invars):
        return None, False
    arguments = [atom if is_literal(atom) else outside[atom] for atom in callback.invars]
    result_index = {variable: i for i, variable in enumerate(callback.outvars)}
    inside = dict(zip(equation.outvars, inner.outvars, strict=True))
    positions = [result_index[inside[variable]] for variable in outputs]
    function = callback.params["callback"]

    def run(*arrays: Any) -> list[Any]:
        values = dict(zip(inputs, arrays, strict=True))
        results = function(*(atom.val if is_literal(atom) else values[atom] for atom in arguments))
        return [results[i] for i in positions]

    return run, getattr(getattr(function, "callback_func", None), PER_ENVIRONMENT, False)


def forwarded(equation: Equation) -> dict[Any, Any]:
    """Outputs of a call that are inputs passed through: output variable to input variable."""
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
    """A placeholder array, whose content is never used."""
    if key_dtype(dtype):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, dtype))
        return jax.random.wrap_key_data(jnp.zeros(data.shape, data.dtype), impl=key_generator(dtype))
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
    """The argument names of the traced function; empty strings where JAX does not know them."""
    inner = open_jaxpr(jaxpr)[0]
    names = inner.debug_info.arg_names
    return tuple(name or "" for name in names) if names else ("",) * len(inner.invars)


def result_names(jaxpr: Any) -> tuple[str, ...]:
    """The paths of the outputs in the traced function's result; empty strings where JAX does not know them."""
    inner = open_jaxpr(jaxpr)[0]
    paths = inner.debug_info.result_paths
    return tuple(path or "" for path in paths) if paths else ("",) * len(inner.outvars)


def key_generator(dtype: Any) -> str:
    """The name of the generator of keys of this dtype; JAX's public API has it for arrays only."""
    return dtype._impl.name


def key_dtype(dtype: Any) -> bool:
    """Whether arrays of this dtype hold PRNG keys."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)
