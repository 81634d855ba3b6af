"""A policy as an ONNX model, written from its traced program.

Written here because jax2onnx brings a dozen packages, its newest release caps one that training needs, and its models
of bfloat16 policies do not load in onnxruntime on a CPU.
"""

from typing import Any

import jax
import numpy as np

from fragmenta.errors import ConfigError
from fragmenta.evaluation.onnx_nodes import IR_VERSION, OPSET, Nodes, is_known, onnx_package
from fragmenta.evaluation.onnx_rules import RULES
from fragmenta.tracing.jaxprs import Equation, bind, called_jaxpr, is_literal, open_jaxpr, source_line
from fragmenta.tracing.names import leaf_name


def onnx_model(function: Any, inputs: dict[str, Any], outputs: tuple[str, ...]) -> Any:
    """The function as an ONNX model.

    `inputs` are shapes by name, with the symbolic batch size first. A part of a dictionary is named by its path, as in
    `observation.camera`; an output with the name of an input is called `next_NAME`, since names in ONNX are unique.
    """
    leaves = _named_leaves(inputs)
    closed, results = jax.make_jaxpr(function, return_shape=True)(*inputs.values())
    named = dict(zip(outputs, results if isinstance(results, tuple) else (results,), strict=True))
    named = {f"next_{name}" if name in inputs else name: value for name, value in named.items()}
    results = _named_leaves(named)
    nodes = Nodes(leaves[0][0], leaves[0][1].shape[0])
    values = _evaluate(nodes, closed, [name for name, _ in leaves])
    for (name, _), value in zip(results, values, strict=True):
        nodes.name_outputs("Identity", [nodes.name(value)], [name])
    helper = nodes.onnx.helper
    sides = [
        [helper.make_tensor_value_info(name, nodes.type_of(leaf.dtype), _shape(leaf)) for name, leaf in side]
        for side in (leaves, results)
    ]
    graph = helper.make_graph(nodes.nodes, "policy", *sides, initializer=nodes.constants)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="fragmenta")
    nodes.onnx.checker.check_model(model, full_check=True)
    return model


def tensors(side: Any) -> dict[str, Any]:
    """Names, shapes and types of a model's inputs or outputs."""
    dtype_of = onnx_package().helper.tensor_dtype_to_np_dtype
    return {
        value.name: {
            "shape": [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim],
            "dtype": str(dtype_of(value.type.tensor_type.elem_type)),
        }
        for value in side
    }


def _evaluate(nodes: Nodes, jaxpr: Any, arguments: list[Any], caller: str = "") -> list[Any]:
    """Write a jaxpr's equations as nodes; what depends on no input is computed now. `caller` is the line that calls."""
    opened, constants = open_jaxpr(jaxpr)
    values = dict(zip((*opened.constvars, *opened.invars), (*constants, *arguments), strict=True))

    def value_of(atom: Any) -> Any:
        return np.asarray(atom.val, atom.aval.dtype) if is_literal(atom) else values[atom]

    for equation in opened.eqns:
        place = source_line(equation) or caller
        results = _equation(nodes, equation, [value_of(atom) for atom in equation.invars], place)
        values.update(zip(equation.outvars, results, strict=True))
    return [value_of(atom) for atom in opened.outvars]


def _equation(nodes: Nodes, equation: Equation, values: list[Any], place: str) -> list[Any]:
    called = called_jaxpr(equation)
    if called is not None:
        return _evaluate(nodes, called, values, place)
    if equation.primitive.name == "platform_index":
        return [len(equation.params["platforms"]) - 1]  # the default comes last, and suits a runtime we do not know
    if equation.primitive.name == "cond" and not isinstance(values[0], str):
        branches = equation.params["branches"]
        return _evaluate(nodes, branches[int(np.clip(values[0], 0, len(branches) - 1))], values[1:], place)
    known = not any(isinstance(value, str) for value in values)
    if known and all(is_known(size) for variable in equation.outvars for size in variable.aval.shape):
        return bind(equation, values)
    rule = RULES.get(equation.primitive.name)
    results = rule(nodes, equation, values) if rule else None
    if results is None:
        raise ConfigError(
            f"no policy.onnx: there is no rule for the operation {equation.primitive.name}"
            f"{f' at {place}' if place else ''}; write it with simpler operations, or export without --onnx"
        )
    return results


def _named_leaves(values: dict[str, Any]) -> list[tuple[str, Any]]:
    """All leaves with their names, in the order of the dictionary, which JAX would sort."""
    trees = ({name: value} for name, value in values.items())
    return [(leaf_name(path), leaf) for tree in trees for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _shape(leaf: Any) -> list[int | str]:
    return [int(size) if is_known(size) else str(size) for size in leaf.shape]
