"""What replicas share: for every value, whether each of them has the same, its own part, or something else.

The analysis walks two traces of one program side by side, at the full and at a replica's number of environments (or
agents). The dimension that differs is where they are. It answers "something else" whenever it cannot be sure.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fragmenta.coordinator import jaxprs

Shape = tuple[int, ...]


class Spread(enum.IntEnum):
    """How a value relates to the same value in the program without replicas; a mix of two is the greater."""

    SHARED = 0
    """Every replica has the very same."""
    SPLIT = 1
    """Every replica has its environments' part."""
    PARTIAL = 2
    """Neither: a sum over a replica's own environments, say."""


def env_axis(wide: Shape, narrow: Shape) -> int | None:
    """The one dimension in which two shapes differ, or None. More than one is refused as if there were none."""
    if len(wide) != len(narrow):
        return None
    differing = [i for i, (a, b) in enumerate(zip(wide, narrow, strict=True)) if a != b]
    return differing[0] if len(differing) == 1 else None


def spread_of(wide: jaxprs.Origin, narrow: jaxprs.Origin, inputs: Sequence[Spread]) -> list[Spread]:
    """The spread of each output of a node, from that of its inputs."""
    known = dict(zip(wide.inputs, inputs, strict=True))
    atoms = wide.equation.invars
    spreads = [Spread.SHARED if jaxprs.is_literal(atom) else known.get(atom, Spread.SHARED) for atom in atoms]
    results = dict(zip(wide.equation.outvars, _equation(wide.equation, narrow.equation, spreads), strict=True))
    return [results[variable] for variable in wide.outputs]


def makes_shared(op: str, spread: Spread, along_the_parts: bool) -> bool:
    """Whether a mark gives every replica what the program without replicas has, given what each of them puts in."""
    if op == "mean":
        return spread != Spread.SPLIT
    if op == "sum":
        return spread == Spread.PARTIAL
    return spread == Spread.SPLIT and along_the_parts


def spread_of_constant(wide: Any, narrow: Any) -> Spread:
    """The spread of a constant that the loop captured."""
    if np.shape(wide) == np.shape(narrow):
        return Spread.SHARED
    return Spread.PARTIAL


def _jaxpr(wide: Any, narrow: Any, inputs: Sequence[Spread]) -> list[Spread]:
    (wide, wide_constants), (narrow, narrow_constants) = jaxprs.open_jaxpr(wide), jaxprs.open_jaxpr(narrow)
    if len(wide.eqns) != len(narrow.eqns) or len(wide.constvars) != len(narrow.constvars):
        return [Spread.PARTIAL] * len(wide.outvars)
    known = dict(zip(wide.invars, inputs, strict=True))
    constants = zip(wide.constvars, wide_constants, narrow_constants, strict=True)
    known.update({variable: spread_of_constant(a, b) for variable, a, b in constants})

    def read(atom: Any) -> Spread:
        return Spread.SHARED if jaxprs.is_literal(atom) else known[atom]

    for a, b in zip(wide.eqns, narrow.eqns, strict=True):
        known.update(zip(a.outvars, _equation(a, b, [read(atom) for atom in a.invars]), strict=True))
    return [read(atom) for atom in wide.outvars]


def _equation(wide: Any, narrow: Any, inputs: list[Spread]) -> list[Spread]:
    name = wide.primitive.name
    mark = jaxprs.mark(wide)
    if mark:  # a collective, unless it is over another axis
        if jaxprs.collective_name(narrow) is None:
            return inputs[:1]
        at = env_axis(_shape(wide.invars[0]), _shape(narrow.invars[0]))
        return [Spread.SHARED if makes_shared(mark.op, inputs[0], at == mark.axis) else Spread.PARTIAL]
    if name != narrow.primitive.name:
        return [Spread.PARTIAL] * len(wide.outvars)
    if jaxprs.is_row_wise(wide):
        return _row_wise(wide, narrow, inputs)
    if name == "scan":
        return _scan(wide, narrow, inputs)
    if name == "while":
        return _while(wide, narrow, inputs)
    if name == "cond":
        return _cond(wide, narrow, inputs)
    inner = jaxprs.called_jaxpr(wide), jaxprs.called_jaxpr(narrow)
    if inner[0] is not None and inner[1] is not None:
        return _jaxpr(inner[0], inner[1], inputs)
    shapes = [(_shape(a), _shape(b)) for a, b in zip(wide.outvars, narrow.outvars, strict=True)]
    return [_operation(wide, narrow, env_axis(a, b), a, b, inputs) for a, b in shapes]


def _operation(wide: Any, narrow: Any, axis: int | None, a: Shape, b: Shape, inputs: list[Spread]) -> Spread:
    worst = max(inputs, default=Spread.SHARED)
    if worst == Spread.PARTIAL or (axis is None and a != b):
        return Spread.PARTIAL
    if worst == Spread.SHARED:
        if axis is None:
            return Spread.SHARED
        # Made along the environments out of shared values: the same for every environment, or numbered by position.
        uniform = wide.primitive.name in ("broadcast_in_dim", "copy") or wide.params.get("dimension", axis) != axis
        return Spread.SPLIT if uniform else Spread.PARTIAL
    if axis is None:
        return Spread.PARTIAL
    mixes = _MIXING.get(wide.primitive.name)
    operands = [(env_axis(_shape(x), _shape(y)), _shape(x)) for x, y in zip(wide.invars, narrow.invars, strict=True)]
    if mixes and any(at is not None and mixes(_Case(wide.params, at, shape, axis, a)) for at, shape in operands):
        return Spread.PARTIAL
    return Spread.SPLIT


def _row_wise(wide: Any, narrow: Any, inputs: list[Spread]) -> list[Spread]:
    """Rows stay rows. A result with another number of them (a derivative's sums, flattened rows) may mix them."""
    worst = max(inputs, default=Spread.SHARED)
    if worst == Spread.PARTIAL:
        return [worst] * len(wide.outvars)
    if len(wide.invars) != len(narrow.invars) or len(wide.outvars) != len(narrow.outvars):
        return [Spread.PARTIAL] * len(wide.outvars)  # a derivative that keeps other values for many rows than for few
    parts = {_extents(a, b) for a, b, s in zip(wide.invars, narrow.invars, inputs, strict=True) if s == Spread.SPLIT}
    found = []
    for a, b in zip(wide.outvars, narrow.outvars, strict=True):
        same = _shape(a) == _shape(b)
        if worst == Spread.SHARED:
            found.append(Spread.SHARED if same else Spread.PARTIAL)
        else:
            found.append(Spread.SPLIT if not same and _extents(a, b) in parts else Spread.PARTIAL)
    return found


def _extents(wide: Any, narrow: Any) -> tuple[int, int] | None:
    """How long the differing dimension is in both, or None if none differs."""
    axis = env_axis(_shape(wide), _shape(narrow))
    return None if axis is None else (_shape(wide)[axis], _shape(narrow)[axis])


def _scan(wide: Any, narrow: Any, inputs: list[Spread]) -> list[Spread]:
    parts = jaxprs.scan_parts(wide)
    if wide.params["length"] != narrow.params["length"]:
        return [Spread.PARTIAL] * len(wide.outvars)
    body = wide.params["jaxpr"], narrow.params["jaxpr"]
    constants, sequences = inputs[: parts.constants], inputs[parts.constants + parts.carries :]
    start = inputs[parts.constants : parts.constants + parts.carries]
    return _fixpoint(start, lambda carries: _jaxpr(*body, [*constants, *carries, *sequences]))


def _while(wide: Any, narrow: Any, inputs: list[Spread]) -> list[Spread]:
    tests, steps = wide.params["cond_nconsts"], wide.params["body_nconsts"]
    body = wide.params["body_jaxpr"], narrow.params["body_jaxpr"]
    test = wide.params["cond_jaxpr"], narrow.params["cond_jaxpr"]
    constants = inputs[tests : tests + steps]
    results = _fixpoint(inputs[tests + steps :], lambda carries: _jaxpr(*body, [*constants, *carries]))
    (decision,) = _jaxpr(*test, [*inputs[:tests], *results])
    return results if decision == Spread.SHARED else [Spread.PARTIAL] * len(results)


def _cond(wide: Any, narrow: Any, inputs: list[Spread]) -> list[Spread]:
    branches = zip(wide.params["branches"], narrow.params["branches"], strict=True)
    results = [_jaxpr(a, b, inputs[1:]) for a, b in branches]
    if inputs[0] != Spread.SHARED:
        return [Spread.PARTIAL] * len(wide.outvars)
    return [max(column) for column in zip(*results, strict=True)]


def _fixpoint(carries: list[Spread], body: Callable[[list[Spread]], list[Spread]]) -> list[Spread]:
    while True:
        results = body(carries)
        joined = [max(pair) for pair in zip(carries, results, strict=False)]
        if joined == carries:
            return [*carries, *results[len(carries) :]]
        carries = joined


def _shape(atom: Any) -> Shape:
    return tuple(atom.aval.shape)


class _Case(NamedTuple):
    """An equation with one operand and one result that have environments: where, and the shapes."""

    params: Any
    at: int
    shape: Shape
    result_at: int
    result_shape: Shape


Mixes = Callable[[_Case], bool]
"""Whether an equation moves data between environments."""


def _along(parameter: str) -> Mixes:
    def mixes(case: _Case) -> bool:
        dimensions = case.params[parameter]
        return case.at in dimensions if isinstance(dimensions, (tuple, list)) else case.at == dimensions

    return mixes


def _reshapes(case: _Case) -> bool:
    # Parts stay contiguous only if as many elements precede the environments as before.
    return int(np.prod(case.shape[: case.at])) != int(np.prod(case.result_shape[: case.result_at]))


def _slices(case: _Case) -> bool:
    sizes = case.params.get("slice_sizes")
    if sizes is not None and len(sizes) == len(case.shape):
        return sizes[case.at] != case.shape[case.at]
    return case.shape[case.at] != case.result_shape[case.result_at]


def _gathers(case: _Case) -> bool:
    numbers = case.params["dimension_numbers"]
    indexed = case.at in numbers.start_index_map and case.at not in numbers.operand_batching_dims
    return indexed and len(case.params["slice_sizes"]) == len(case.shape)


def _scatters(case: _Case) -> bool:
    numbers = case.params["dimension_numbers"]
    indexed = case.at in numbers.scatter_dims_to_operand_dims and case.at not in numbers.operand_batching_dims
    return indexed and case.shape == case.result_shape


def _always(_: _Case) -> bool:
    return True


_MIXING: dict[str, Mixes] = {
    "reshape": _reshapes,
    "sort": _along("dimension"),
    "rev": _along("dimensions"),
    "concatenate": _along("dimension"),
    "argmax": _along("axes"),
    "argmin": _along("axes"),
    "slice": _slices,
    "dynamic_slice": _slices,
    "dynamic_update_slice": _always,
    "gather": _gathers,
    **{name: _along("axis") for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    **{f"scatter{suffix}": _scatters for suffix in ("", "-add", "-mul", "-min", "-max")},
    **dict.fromkeys(("pad", "fft", "conv_general_dilated", "reduce_window", "triangular_solve", "top_k"), _always),
}
