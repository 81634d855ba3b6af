"""The cost of an equation: roughly how many operations it takes, and what replicas exchange for it."""

import math
from typing import Any

from fragmenta.coordinator.partition.block import Taker
from fragmenta.graph.exchange import Exchange
from fragmenta.stage import STAGE_PREFIX
from fragmenta.tracing import jaxprs

_FREE = {"reshape", "broadcast_in_dim", "squeeze", "expand_dims", "copy", "iota", "convert_element_type", "slice"}


def operations(equation: Any) -> float:
    """Estimated operation count: multiply-adds of products, entries of anything else, times the length of a scan."""
    name, params = equation.primitive.name, equation.params
    inside = sum(operations(sub) for inner in jaxprs.inner_jaxprs(equation) for sub in jaxprs.open_jaxpr(inner)[0].eqns)
    if inside:
        return inside * (params["length"] if name == "scan" else 1)
    sizes = [variable.aval.size for variable in equation.outvars if hasattr(variable.aval, "size")]
    if name in _FREE or not sizes:
        return 0.0
    if name == "dot_general":
        (contracting, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2.0 * sizes[0] * math.prod(shape[d] for d in contracting)
    if name == "conv_general_dilated":
        return 2.0 * sizes[0] * math.prod(equation.invars[1].aval.shape[2:])
    if name in ("random_bits", "threefry2x32"):
        return 20.0 * sum(sizes)
    input_sizes = [atom.aval.size for atom in equation.invars if hasattr(atom.aval, "size")]
    return float(max(*sizes, *input_sizes) if input_sizes else sum(sizes))


def exchange(kind: Any, variable: Any, taker: Taker) -> Exchange:
    """The exchange that makes a value whole for an operation."""
    aval = variable.aval
    return Exchange(kind, aval.size * aval.dtype.itemsize, 1, *taker)


def taker_of(equation: Any) -> Taker:
    """The name of an equation's primitive, or of the function it calls, with its source line."""
    name = str(equation.params.get("name") or equation.primitive.name)
    return Taker(name.removeprefix(STAGE_PREFIX), jaxprs.source_line(equation))
