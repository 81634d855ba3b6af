"""The state before the first iteration, with a replay where there is room for it."""

from collections.abc import Container, Sequence
from typing import Any

import jax

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.tracing.names import is_in, leaf_names
from fragmenta.tracing.trace import abstract_state


def initial_state(
    algorithm: Algorithm, env: Environment, key: jax.Array, replay: str = "device", in_place: Container[int] = ()
) -> Any:
    """The state before the first iteration; fields that fill anew are on the `device`, or in memory of the `host`. Of
    the leaves `in_place` it has only shapes: workers make them."""
    expected = abstract_state(algorithm, env)
    leaves, structure = jax.tree.flatten(expected)
    fills_anew = [is_in(name, algorithm.rebuildable) for name in leaf_names(expected)]
    for where in ("device", "host"):
        chosen = [
            i
            for i, large in enumerate(fills_anew)
            if (large and replay == "host") == (where == "host") and i not in in_place
        ]
        for i, leaf in zip(chosen, _initial_leaves(algorithm, env, key, chosen, where), strict=True):
            leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


def _initial_leaves(
    algorithm: Algorithm, env: Environment, key: jax.Array, chosen: Sequence[int], where: str
) -> list[Any]:
    """These leaves of the initial state, on the `device` or in memory of the `host`; nothing else is computed."""
    if not chosen:
        return []

    @jax.jit
    def initial(key: jax.Array) -> list[Any]:
        leaves = jax.tree.leaves(algorithm.init(env, key))
        return [leaves[i] for i in chosen]

    if where == "device":
        return initial(key)
    # By default, too: an empty replay does not depend on the key, so that the key does not decide where it is computed.
    with jax.default_device(jax.devices("cpu")[0]):
        return initial(in_host_memory(key))


def in_host_memory(array: jax.Array) -> jax.Array:
    """The same array in memory of the host, where programs then use it."""
    return jax.device_put(array, jax.devices("cpu")[0])
