"""A worker's leaves of the state: its part of the whole, on its devices."""

from collections.abc import Container, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.algorithms import Algorithm
from fragmenta.coordinator.partition.parts import parts_of
from fragmenta.envs import Environment
from fragmenta.graph import Program
from fragmenta.graph.layout import Split
from fragmenta.worker.backends.xla import to_raw
from fragmenta.worker.deploy import Deployment

LARGE = 1 << 20  # bytes from which on a copy of an array costs more than a little time


def part_of_state(program: Program, replica: int, state: Sequence[Any]) -> dict[int, Any]:
    """A replica's leaves, with its part of those that are split; PRNG keys as integers. What has no values (None, or a
    shape only) is left out."""
    part = {}
    for i in program.state:
        if state[i] is None or isinstance(state[i], jax.ShapeDtypeStruct):
            continue
        layout = program.layout(program.graph.state_inputs[i])
        leaf = to_raw(state[i])
        if program.replicas > 1 and isinstance(layout, Split):
            leaf = parts_of(leaf, layout, program.replicas)[replica]
        part[i] = leaf
    return part


Source = tuple[Algorithm, Environment]
"""What makes the state before the first iteration."""


def state_of(
    deployment: Deployment, replica: int, state: Sequence[Any], shared: Container[int], source: Source | None
) -> dict[int, Any]:
    """A worker's leaves of the whole state, on its devices; `source` makes those of which only the shape is given. It
    takes over large rebuildable ones that are not `shared` with other workers: there may not be enough memory for a
    copy of a replay."""
    program = deployment.schedule.program
    parts = part_of_state(program, replica, state)
    taken = {
        i: leaf
        for i, leaf in parts.items()
        if i in program.graph.rebuildable and i not in shared and _is_at(deployment, i, leaf)
    }
    empty = [i for i in program.state if isinstance(state[i], jax.ShapeDtypeStruct)]
    made = empty_part(deployment, replica, *source, empty) if source else {}
    return hold_state(deployment, {i: leaf for i, leaf in parts.items() if i not in taken}) | taken | made


def hold_state(deployment: Deployment, leaves: dict[int, Any]) -> dict[int, Any]:
    """Private copies of a worker's leaves on its devices, because it will donate their buffers."""
    with jax.default_device(deployment.site.devices[0]):  # for NumPy arrays: not by way of another device
        return {i: jax.device_put(jnp.copy(leaf), _place(deployment, i)) for i, leaf in leaves.items()}


def empty_part(
    deployment: Deployment, replica: int, algorithm: Algorithm, env: Environment, leaves: Sequence[int]
) -> dict[int, jax.Array]:
    """A worker's part of these leaves as they are before the first iteration, made where it holds them: the whole may
    fit nowhere. They do not depend on a key."""
    program = deployment.schedule.program
    if not leaves:
        return {}

    def make() -> dict[int, Any]:
        whole = jax.tree.leaves(algorithm.init(env, jax.random.key(0)))
        return part_of_state(program, replica, [leaf if i in leaves else None for i, leaf in enumerate(whole)])

    return jax.jit(make, out_shardings={i: _place(deployment, i) for i in leaves})()


def _place(deployment: Deployment, leaf: int) -> Any:
    return deployment.specs[deployment.schedule.program.graph.state_inputs[leaf].id].sharding


def _is_at(deployment: Deployment, leaf: int, array: Any) -> bool:
    """Whether a large array is where the worker holds it."""
    return isinstance(array, jax.Array) and array.nbytes >= LARGE and array.sharding == _place(deployment, leaf)
