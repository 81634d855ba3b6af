"""How each JAX operation that policies use is written in ONNX."""

import functools
import string
from collections.abc import Callable
from typing import Any

import numpy as np

from fragmenta.evaluation.onnx_nodes import Nodes, is_known, plain_dtype
from fragmenta.tracing.jaxprs import Equation

Rule = Callable[[Nodes, Equation, list[Any]], list[Any] | None]
"""From an equation and its input values to its output values; None if the rule does not cover the equation."""
END = np.iinfo(np.int64).max
"""As the end of a slice: the end of the dimension, whatever its length."""


def _same(operator: str, **attributes: Any) -> Rule:
    return lambda nodes, equation, values: nodes.add(operator, *values, **attributes)


def _logical(operator: str) -> Rule:
    def rule(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any] | None:
        return nodes.add(operator, *values) if equation.outvars[0].aval.dtype == np.bool_ else None

    return rule


def _reduced(operator: str, nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    return nodes.add(operator, *values, np.asarray(equation.params["axes"], np.int64), keepdims=0)


def _reduction(operator: str) -> Rule:
    return functools.partial(_reduced, operator)


def _bool_reduction(operator: str) -> Rule:
    """Of truth values, as integers: ONNX reduces them as they are only in versions that are newer than ours."""

    def rule(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any] | None:
        if equation.outvars[0].aval.dtype != np.bool_:
            return None
        (reduced,) = _reduced(operator, nodes, equation, nodes.cast(values[0], np.int32))
        return nodes.cast(reduced, np.bool_)

    return rule


def _arg(operator: str) -> Rule:
    def rule(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
        (axis,) = equation.params["axes"]
        (index,) = nodes.add(operator, *values, axis=axis, keepdims=0)
        return nodes.cast(index, equation.params["index_dtype"])

    return rule


def _convert(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    dtype = equation.params["new_dtype"]
    if plain_dtype(dtype) == plain_dtype(equation.invars[0].aval.dtype):
        return values
    return nodes.cast(values[0], dtype)


def _reshape(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any] | None:
    if equation.params.get("dimensions") is not None:
        return None
    return nodes.reshape(values[0], equation.outvars[0].aval.shape)


def _squeeze(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    return nodes.reshape(values[0], equation.outvars[0].aval.shape)


def _broadcast(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    sizes = dict(zip(equation.params["broadcast_dimensions"], before, strict=True))
    aligned = [sizes.get(dimension, 1) for dimension in range(len(after))]
    (value,) = nodes.reshape(values[0], aligned) if aligned != list(before) else values
    if aligned == list(after):
        return [value]
    return nodes.add("Expand", value, nodes.shape([1 if a == b else b for a, b in zip(aligned, after, strict=True)]))


def _transpose(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    return nodes.add("Transpose", *values, perm=list(map(int, equation.params["permutation"])))


def _concatenate(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    return nodes.add("Concat", *values, axis=equation.params["dimension"])


def _stack(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    axis = equation.params["axis"]
    parts = [nodes.add("Unsqueeze", value, np.asarray([axis], np.int64))[0] for value in values]
    return nodes.add("Concat", *parts, axis=axis)


def _split(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    sizes = np.asarray(equation.params["sizes"], np.int64)
    return nodes.add("Split", *values, sizes, outputs=len(sizes), axis=equation.params["axis"])


def _cut(nodes: Nodes, value: Any, starts: Any, ends: Any, steps: Any) -> list[Any]:
    ends = [end if is_known(end) else END for end in ends]
    vectors = (starts, ends, range(len(ends)), steps)
    return nodes.add("Slice", value, *(np.asarray(vector, np.int64) for vector in vectors))


def _slice(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any] | None:
    starts, ends = equation.params["start_indices"], equation.params["limit_indices"]
    shape = equation.invars[0].aval.shape
    if any(not is_known(end) and end != size for end, size in zip(ends, shape, strict=True)):
        return None
    return _cut(nodes, values[0], starts, ends, equation.params["strides"] or [1] * len(ends))


def _gather(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any] | None:
    """Indexing by numbers that are known: a slice, or entries along one dimension."""
    value, indices = values
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape = equation.invars[0].aval.shape
    if isinstance(indices, str) or numbers.operand_batching_dims:
        return None
    indices = np.asarray(indices, np.int64)
    if indices.ndim == 1:
        starts = [0] * len(shape)
        for dimension, start in zip(numbers.start_index_map, indices, strict=True):
            starts[dimension] = int(start)
        ends = [start + size if is_known(size) else size for start, size in zip(starts, sizes, strict=True)]
        (value,) = _cut(nodes, value, starts, ends, [1] * len(shape))
        return nodes.reshape(value, equation.outvars[0].aval.shape)
    if numbers.collapsed_slice_dims != numbers.start_index_map or len(numbers.start_index_map) != 1:
        return None
    (axis,) = numbers.start_index_map
    if any(size != full for d, (size, full) in enumerate(zip(sizes, shape, strict=True)) if d != axis):
        return None
    (taken,) = nodes.add("Gather", value, indices[..., 0], axis=axis)
    rank, indexed = len(equation.outvars[0].aval.shape), indices.ndim - 1
    others = [d for d in range(rank) if not axis <= d < axis + indexed]
    places = dict(zip(numbers.offset_dims, others, strict=True))
    indexed_axes = iter(range(axis, axis + indexed))
    return nodes.add("Transpose", taken, perm=[places[d] if d in places else next(indexed_axes) for d in range(rank)])


def _product(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    (over, batch), (left, right) = equation.params["dimension_numbers"], (v.aval for v in equation.invars)
    if right.ndim == 2 and not batch[0] and (tuple(over[0]), tuple(over[1])) == ((left.ndim - 1,), (0,)):
        return nodes.add("MatMul", *values)  # the usual layer, which every runtime computes fastest
    free = iter(string.ascii_letters)
    letters = [next(free) for _ in range(left.ndim)]
    shared = dict(zip((*over[1], *batch[1]), (letters[d] for d in (*over[0], *batch[0])), strict=True))
    others = [shared[d] if d in shared else next(free) for d in range(right.ndim)]
    result = [letters[d] for d in batch[0]]
    result += [c for d, c in enumerate(letters) if d not in (*over[0], *batch[0])]
    result += [c for d, c in enumerate(others) if d not in shared]
    return nodes.add("Einsum", *values, equation=f"{''.join(letters)},{''.join(others)}->{''.join(result)}")


def _convolution(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any] | None:
    params, (images, filters) = equation.params, values
    if params["batch_group_count"] != 1 or set(params["lhs_dilation"]) != {1}:
        return None
    numbers, padding = params["dimension_numbers"], params["padding"]
    (images,) = nodes.add("Transpose", images, perm=list(numbers.lhs_spec))
    (filters,) = nodes.add("Transpose", filters, perm=list(numbers.rhs_spec))
    (result,) = nodes.add(
        "Conv",
        *(images, filters),
        strides=list(params["window_strides"]),
        dilations=list(params["rhs_dilation"]),
        group=params["feature_group_count"],
        pads=[low for low, _ in padding] + [high for _, high in padding],
    )
    return nodes.add("Transpose", result, perm=np.argsort(numbers.out_spec).tolist())


def _select(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any] | None:
    which, *cases = values
    if equation.invars[0].aval.dtype != np.bool_:
        return None
    return nodes.add("Where", which, *reversed(cases))


def _power(nodes: Nodes, equation: Equation, values: list[Any]) -> list[Any]:
    return nodes.add("Pow", *values, np.asarray(equation.params["y"], plain_dtype(equation.outvars[0].aval.dtype)))


RULES: dict[str, Rule] = {
    **{name: _same(name.title()) for name in ("add", "sub", "mul", "div", "max", "min", "pow", "neg", "abs", "sign")},
    **{name: _same(name.title()) for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "floor", "ceil", "erf")},
    "logistic": _same("Sigmoid"),
    "rem": _same("Mod", fmod=1),
    "eq": _same("Equal"),
    "gt": _same("Greater"),
    "lt": _same("Less"),
    "ne": lambda nodes, equation, values: nodes.add("Not", *nodes.add("Equal", *values)),
    "ge": _same("GreaterOrEqual"),
    "le": _same("LessOrEqual"),
    "and": _logical("And"),
    "or": _logical("Or"),
    "not": _logical("Not"),
    "reduce_sum": _reduction("ReduceSum"),
    "reduce_max": _reduction("ReduceMax"),
    "reduce_min": _reduction("ReduceMin"),
    "reduce_or": _bool_reduction("ReduceMax"),
    "reduce_and": _bool_reduction("ReduceMin"),
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "copy": lambda nodes, equation, values: values,
    "stop_gradient": lambda nodes, equation, values: values,
    "square": lambda nodes, equation, values: nodes.add("Mul", *values, *values),
    "integer_pow": _power,
    "rsqrt": lambda nodes, equation, values: nodes.add("Reciprocal", *nodes.add("Sqrt", *values)),
    "clamp": lambda nodes, equation, values: nodes.add("Min", *nodes.add("Max", *values[:2]), values[2]),
    "select_n": _select,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    "split": _split,
    "slice": _slice,
    "gather": _gather,
    "dot_general": _product,
    "conv_general_dilated": _convolution,
    "convert_element_type": _convert,
}
"""By the name of the primitive."""
