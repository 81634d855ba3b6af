"""Where a run starts: from the initial state, maybe with the parameters of another run, or from a checkpoint."""

import dataclasses
from typing import Any

import jax
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.engines.initial import in_host_memory, initial_state
from fragmenta.envs import Environment
from fragmenta.runs.checkpoints import Checkpoint
from fragmenta.runs.state import from_arrays, to_arrays
from fragmenta.tracing.names import is_in, leaf_name, leaf_names
from fragmenta.tracing.trace import abstract_state


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

    @property
    def iteration(self) -> int:
        """Iterations done in earlier runs."""
        return self.checkpoint.iteration if self.checkpoint else 0

    @property
    def steps(self) -> int:
        """Steps done in earlier runs."""
        return self.checkpoint.steps if self.checkpoint else 0

    def state(self, env: Environment) -> tuple[Any, Checkpoint]:
        """The state to start from with these environments, and the same as a checkpoint."""
        key = jax.random.key(self.seed)
        if self.checkpoint is None:
            state = initial_state(self.algorithm, env, key, self.replay)
            if self.params is not None:
                state = self.algorithm.with_params(state, self.params)
            return state, Checkpoint(self.saved(state), 0, 0)
        state = self.restored(env, self.checkpoint)
        if env.is_replayable:
            return state, self.checkpoint
        # New seeds: repeating the same episodes would count them twice.
        fresh = initial_state(self.algorithm, env, jax.random.fold_in(key, self.iteration), self.replay)
        state = self.algorithm.with_new_episodes(state, fresh)
        return state, dataclasses.replace(self.checkpoint, arrays=self.saved(state))

    def saved(self, state: Any) -> dict[str, np.ndarray]:
        """What a checkpoint of the state contains."""
        return to_arrays(state, self.unsaved)

    def restored(self, env: Environment, checkpoint: Checkpoint) -> Any:
        """The state of a checkpoint; fields that it leaves out are as they were at first."""
        expected = abstract_state(self.algorithm, env)
        if any(name not in checkpoint.arrays for name in leaf_names(expected)):
            expected = initial_state(self.algorithm, env, jax.random.key(self.seed), self.replay)
        rebuildable = self.algorithm.rebuildable
        if self.replay == "device":
            return from_arrays(expected, checkpoint.arrays, self.source, rebuildable)
        with jax.default_device(jax.devices("cpu")[0]):
            state = from_arrays(expected, checkpoint.arrays, self.source, rebuildable)

        def placed(path: Any, leaf: jax.Array) -> jax.Array:
            fills_anew = is_in(leaf_name(path), rebuildable)
            return in_host_memory(leaf) if fills_anew else jax.device_put(leaf, jax.devices()[0])

        return jax.tree_util.tree_map_with_path(placed, state)
