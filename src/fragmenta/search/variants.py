"""Algorithms that differ only in numbers, as one program: which fields may be traced, and their rows of numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.algorithms import Algorithm
from fragmenta.algorithms.schedules import variant
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.tracing.iteration import TOTALS, iteration


def stacked(algorithms: Sequence[Algorithm], fields: Sequence[str]) -> dict[str, jax.Array]:
    """The values of these fields, one row per algorithm."""
    # Scalars of weak type, as Python's floats are: they must not change the precision of what they multiply.
    return {name: jnp.stack([jnp.asarray(float(getattr(a, name))) for a in algorithms]) for name in fields}


def traceable_fields(algorithm: Algorithm, env: Environment, fields: Sequence[str]) -> tuple[str, ...] | None:
    """Those of these fields whose numbers may differ between rows of one program; None if rows cannot share one at all.

    Found by trying: a field that decides about shapes or Python's control flow cannot be traced. An error of the
    algorithm itself is raised as it is.
    """
    plain = jax.eval_shape(lambda key: _one_iteration(algorithm, env, key), jax.random.key(0))
    _check_returns(algorithm, plain[0][1])

    def fits(fields: tuple[str, ...]) -> bool:
        return _shapes_with(algorithm, env, fields) == _shapes(plain)

    floats = tuple(name for name in fields if isinstance(getattr(algorithm, name), float))
    if fits(floats):
        return floats
    if not fits(()):
        return None
    alone = tuple(name for name in floats if fits((name,)))
    return alone if fits(alone) else ()


def _check_returns(algorithm: Algorithm, metrics: Mapping[str, Any]) -> None:
    if TOTALS[0] not in metrics:
        problem = f"{type(algorithm).__name__} has no World in its state, but trials are ranked by return"
        raise ConfigError(f"{problem}: keep the world of its environments in the state")


def _one_iteration(algorithm: Algorithm, env: Environment, key: jax.Array) -> Any:
    state = algorithm.init(env, key)
    return iteration(algorithm, env)(state), algorithm.params(state)


def _shapes_with(algorithm: Algorithm, env: Environment, fields: tuple[str, ...]) -> Any:
    """The shapes of one iteration with these fields traced, without the rows; None if it cannot be traced."""
    numbers = stacked([algorithm, algorithm], fields)

    def row(numbers: dict[str, jax.Array], key: jax.Array) -> Any:
        return _one_iteration(variant(algorithm, numbers), env, key)

    try:
        rows = jax.eval_shape(jax.vmap(row), numbers, jax.random.split(jax.random.key(0)))
    except Exception:  # whatever the user's code raises when it meets a traced value
        return None
    return _shapes(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows))


def _shapes(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return [(leaf.shape, leaf.dtype) for leaf in leaves], str(structure)
