"""Where a run starts: from the initial state, maybe with the parameters of another run, or from a checkpoint."""

import dataclasses
from collections.abc import Container, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.engines.initial import in_host_memory, initial_state
from fragmenta.envs import Environment
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.state import from_arrays, to_arrays
from fragmenta.tracing.names import is_in, leaf_name, leaf_names
from fragmenta.tracing.trace import abstract_state


def resumption(algorithm: Algorithm, checkpoint: Checkpoint | None) -> dict[str, str]:
    """For each field that fills anew: whether a run from this checkpoint `continues` with it or `refills` it."""
    if checkpoint is None:
        return {}
    saved = [field for field in algorithm.rebuildable if any(is_in(name, (field,)) for name in checkpoint.arrays)]
    return {field: "continues" if field in saved else "refills" for field in algorithm.rebuildable}


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of a run."""

    algorithm: Algorithm
    seed: int
    checkpoint: Checkpoint | None = None
    """The end of the earlier run."""
    source: str = ""
    """Whose checkpoint it is, for messages."""
    records: tuple[dict[str, Any], ...] = ()
    """Records of the earlier iterations."""
    params: Any = None
    """Parameters of another run, in place of the initial ones."""
    unsaved: tuple[str, ...] = ()
    """Fields of the state that checkpoints leave out."""
    replay: str = "device"
    """Where the fields that fill anew are: on the `device`, or in memory of the `host`."""
    in_place: frozenset[int] = frozenset()
    """The leaves of the state, by position, that stay where they are, because they are large."""
    resumption: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """How the fields that fill anew are resumed, as the function of that name says."""

    @property
    def iteration(self) -> int:
        """Iterations done in earlier runs."""
        return self.checkpoint.iteration if self.checkpoint else 0

    @property
    def steps(self) -> int:
        """Steps done in earlier runs."""
        return self.checkpoint.steps if self.checkpoint else 0

    @property
    def copies_are_large(self) -> bool:
        """Whether a checkpoint contains leaves that stay in place."""
        return bool(self.in_place) and not self.unsaved

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Fields that the state at the end of the run leaves out, because they are large and can fill anew."""
        return self.algorithm.rebuildable if self.in_place else ()

    def state(self, env: Environment) -> tuple[Any, Checkpoint]:
        """The state to start from with these environments, and the same as a checkpoint. Leaves that stay in place have
        only a shape if they are to begin empty, and are no longer in the checkpoint otherwise: workers take them."""
        key = jax.random.key(self.seed)
        if self.checkpoint is None:
            state = initial_state(self.algorithm, env, key, self.replay, self.in_place)
            if self.params is not None:
                state = self.algorithm.with_params(state, self.params)
            return state, Checkpoint(self.saved(state), 0, 0)
        state = self.restored(env, self.checkpoint, self.in_place)
        for i, name in enumerate(leaf_names(state)):
            if i in self.in_place:
                self.checkpoint.arrays.pop(name, None)
        if env.is_replayable:
            return state, self.checkpoint
        # New seeds: repeating the same episodes would count them twice.
        fresh = initial_state(self.algorithm, env, jax.random.fold_in(key, self.iteration), self.replay, self.in_place)
        state = _with_new_episodes(self.algorithm, state, fresh)
        without = (*self.unsaved, *self.left_behind)
        return state, dataclasses.replace(self.checkpoint, arrays=to_arrays(state, without))

    def saved(self, state: Any) -> dict[str, np.ndarray]:
        """What a checkpoint of the state contains."""
        return to_arrays(state, self.unsaved)

    def restored(self, env: Environment, checkpoint: Checkpoint, in_place: Container[int] = ()) -> Any:
        """The state of a checkpoint; fields that it leaves out are as they were at first. Of the leaves `in_place`, it
        has those of the checkpoint as NumPy arrays, or else only shapes."""
        expected = abstract_state(self.algorithm, env)
        if any(name not in checkpoint.arrays for name in leaf_names(expected)):
            expected = initial_state(self.algorithm, env, jax.random.key(self.seed), self.replay, in_place)
        rebuildable = self.algorithm.rebuildable
        if self.replay == "device":
            return from_arrays(expected, checkpoint.arrays, self.source, rebuildable, in_place)
        with jax.default_device(jax.devices("cpu")[0]):
            state = from_arrays(expected, checkpoint.arrays, self.source, rebuildable, in_place)

        def placed(path: Any, leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array):
                return leaf
            fills_anew = is_in(leaf_name(path), rebuildable)
            return in_host_memory(leaf) if fills_anew else jax.device_put(leaf, jax.devices()[0])

        return jax.tree_util.tree_map_with_path(placed, state)


def _with_new_episodes(algorithm: Algorithm, saved: Any, fresh: Any) -> Any:
    """A saved state with the environments of a fresh one; leaves that have only a shape stay so."""
    (leaves, structure), new = jax.tree.flatten(saved), jax.tree.leaves(fresh)
    if not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in [*leaves, *new]):
        return algorithm.with_new_episodes(saved, fresh)

    @jax.jit
    def renewed(*states: list[Any]) -> list[Any]:
        whole = [
            [jnp.zeros(like.shape, like.dtype) if leaf is None else leaf for leaf, like in zip(state, new, strict=True)]
            for state in states
        ]
        result = algorithm.with_new_episodes(*(jax.tree.unflatten(structure, state) for state in whole))
        return [None if leaf is None else x for leaf, x in zip(states[0], jax.tree.leaves(result), strict=True)]

    given = ([None if isinstance(x, jax.ShapeDtypeStruct) else x for x in state] for state in (leaves, new))
    results = renewed(*given)
    renewed_leaves = [leaf if x is None else x for leaf, x in zip(leaves, results, strict=True)]
    return jax.tree.unflatten(structure, renewed_leaves)
