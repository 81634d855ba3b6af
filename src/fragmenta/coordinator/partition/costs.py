"""What an equation costs: about how many operations it takes, and what replicas exchange for it."""

import math
from typing import Any

from fragmenta.coordinator.partition.block import Taker
from fragmenta.graph.exchange import Exchange
from fragmenta.stage import STAGE_PREFIX
from fragmenta.tracing import jaxprs

_FREE = {"reshape", "broadcast_in_dim", "squeeze", "expand_dims", "copy", "iota", "convert_element_type", "slice"}


def operations(equation: Any) -> float:
    """Additions and multiplications of products, entries of anything else; all rounds of loops, if they are known."""
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
    read = [atom.aval.size for atom in equation.invars if hasattr(atom.aval, "size")]
    return float(max(*sizes, *read) if read else sum(sizes))


def exchange(kind: Any, variable: Any, taker: Taker) -> Exchange:
    """What it costs that something takes or gives a value whole."""
    aval = variable.aval
    return Exchange(kind, aval.size * aval.dtype.itemsize, 1, *taker)


def taker_of(equation: Any) -> Taker:
    """What an equation does, and where: its primitive, or for a call the function that is called."""
    name = str(equation.params.get("name") or equation.primitive.name)
    return Taker(name.removeprefix(STAGE_PREFIX), jaxprs.source_line(equation))
