"""Convert the state of a run to arrays by name, independent of placement, and back."""

from collections.abc import Container, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.errors import ConfigError
from fragmenta.tracing.names import is_in, leaf_name


def to_arrays(state: Any, without: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Copies of all leaves on the host, but for those that have only a shape or are in the fields `without`; random
    keys as key data. NumPy arrays with memory of their own are not copied."""
    leaves = [(leaf_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]
    return {
        name: leaf if isinstance(leaf, np.ndarray) and leaf.flags.owndata else np.array(_plain(leaf))
        for name, leaf in leaves
        if not is_in(name, without) and not isinstance(leaf, jax.ShapeDtypeStruct)
    }


def from_arrays(
    expected: Any,
    arrays: dict[str, np.ndarray],
    source: str,
    optional: Sequence[str] = (),
    in_place: Container[int] = (),
) -> Any:
    """A state like `expected` (arrays or shapes) with the given values; ConfigError if they do not fit. Leaves in the
    fields `optional` may be missing, and are then those of `expected`; those at the positions `in_place` stay NumPy
    arrays."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(expected)
    names = [leaf_name(path) for path, _ in leaves]
    if mismatches := sorted(name for name in set(names) ^ set(arrays) if name in arrays or not is_in(name, optional)):
        problem = "has no" if mismatches[0] in names else "has an unknown"
        raise ConfigError(f"{source} {problem} '{mismatches[0]}': it belongs to another algorithm or environment")
    values = []
    for i, (name, (_, leaf)) in enumerate(zip(names, leaves, strict=True)):
        if name not in arrays:
            values.append(leaf)
            continue
        array, is_key = arrays[name], jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        shape = jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf
        if array.shape != shape.shape or array.dtype != shape.dtype:
            is_, expects = (f"{x.dtype}{list(x.shape)}" for x in (array, shape))
            raise ConfigError(f"'{name}' in {source} is {is_}, but the run's settings need {expects}")
        if i in in_place:
            values.append(array)
        else:
            values.append(jax.random.wrap_key_data(jnp.asarray(array)) if is_key else jnp.asarray(array))
    return jax.tree.unflatten(structure, values)


def _plain(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
