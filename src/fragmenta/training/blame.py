"""Find the stage that first produced NaN or Inf: run an iteration stage by stage and check every output."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.graph import Call, Graph, Loop
from fragmenta.graph.ir import Block
from fragmenta.tracing.iteration import iteration


def is_finite(tree: Any) -> bool:
    """Whether all floating-point leaves are finite."""
    leaves = jax.tree.leaves(tree)
    return all(np.isfinite(x).all() for x in leaves if x.dtype.kind == "f" or jnp.issubdtype(x.dtype, jnp.inexact))


def first_bad_stage(algorithm: Algorithm, env: Environment, graph: Graph, state: Any, iterations: int) -> str | None:
    """The stage that turns finite inputs into NaN or Inf within `iterations` from this state; None if none does."""
    iterate = jax.jit(iteration(algorithm, env))
    for _ in range(iterations):
        following, metrics = iterate(state)
        if not is_finite((following, metrics)):
            try:
                _run(graph.block, jax.tree.leaves(state), {})
            except _BadStage as bad_stage:
                return bad_stage.args[0]
        state = following
    return None


class _BadStage(Exception):
    pass


def _run(block: Block, arguments: Sequence[Any], values: dict[int, Any]) -> list[Any]:
    values |= {value.id: array for value, array in zip(block.inputs, arguments, strict=True)}
    for node in block.nodes:
        inputs = [values[value.id] for value in node.inputs]
        outputs = _loop(node, inputs, values) if isinstance(node, Loop) else node.apply(*inputs)
        values |= {value.id: array for value, array in zip(node.outputs, outputs, strict=True)}
        if isinstance(node, Call) and not is_finite(outputs) and is_finite(inputs):
            raise _BadStage(node.stage)
    return [values[value.id] for value in block.outputs]


def _loop(loop: Loop, inputs: list[Any], values: dict[int, Any]) -> list[Any]:
    first, last = len(loop.constants), len(loop.constants) + len(loop.carries)
    constants, carries, sequences = inputs[:first], inputs[first:last], inputs[last:]
    rows: list[list[Any]] = []
    order = range(loop.length)
    for i in reversed(order) if loop.reverse else order:
        results = _run(loop.body, [*constants, *carries, *(sequence[i] for sequence in sequences)], values)
        carries = results[: len(carries)]
        rows.append(results[len(carries) :])
    if loop.reverse:
        rows.reverse()
    return [*carries, *(jnp.stack(column) for column in zip(*rows, strict=True))]
