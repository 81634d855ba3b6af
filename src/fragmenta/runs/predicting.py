"""Act with trained parameters, outside training: NumPy observations in, actions of the environment out."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Box, Dict, Environment, Space
from fragmenta.errors import ConfigError
from fragmenta.rl import fold_each, keys_by_index
from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import MASK, assemble, leaves
from fragmenta_core.teams import OBSERVATION
from fragmenta_host.catalogue import single_maker


class TrainedPolicy:
    """An algorithm's trained policy, for observations as the environment returns them."""

    def __init__(self, algorithm: Algorithm, env: Environment, params: Any) -> None:
        self._algorithm, self._env, self._params = algorithm, env, jax.device_put(params)
        self._team = () if env.team_size is None else (env.team_size,)
        self._leaves = [(name, (*self._team, *shape), dtype) for name, shape, dtype in leaves(env.observation_space)]
        self._flat, self._actions = _conversions(env)
        self._calls = 0
        """How often it has sampled: each time with other random numbers."""

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        alive: Any = None,
        action_mask: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """The action for an observation, or those for a batch, and the memory to pass to the next call as `state`.

        Without a memory the state is None. `episode_start` says where an episode begins, so that its memory is empty.
        `alive` says which agents of a team are active, by default all; `action_mask` which actions are legal, if the
        environment says so in its infos.
        """
        arrays, is_single = self._rows(self._with_mask(observation, action_mask))
        count = len(arrays[0])
        fresh = self._algorithm.fresh_memory(count, self._env.num_agents)
        memory = fresh if state is None else self._memory(state, fresh, is_single)
        if episode_start is not None:
            begins = np.broadcast_to(np.asarray(episode_start, bool), count)
            memory = jax.tree.map(lambda new, old: jnp.where(_along(begins, old), new, old), fresh, memory)
        keys = None
        if not deterministic:
            keys = keys_by_index(jax.random.key(self._calls), count)
            self._calls += 1
        inputs = assemble(self._env.observation_space, iter(arrays)), self._mask(alive, count), memory
        action, memory = decide(self._algorithm, self._env, self._params, *inputs, keys, 0)
        actions, memory = np.asarray(self._actions(np.asarray(action))), jax.device_get(memory)
        if is_single:
            actions, memory = actions[0], jax.tree.map(lambda part: part[0], memory)
        return actions, memory if jax.tree.leaves(memory) else None

    def _with_mask(self, observation: Any, action_mask: Any) -> Any:
        """The observation together with the mask of legal actions, where that is apart from it."""
        pool = self._env.host_pool
        is_apart = bool(pool and pool.spec.info_masks) and not self._team
        if is_apart == (action_mask is not None):
            return {OBSERVATION: observation, MASK: action_mask} if is_apart else observation
        if is_apart:
            problem = f"{self._env.title} says in its infos which actions are legal"
            raise ConfigError(f"{problem}: pass action_mask=info['{MASK}'], too")
        raise ConfigError(f"action_mask is for environments with '{MASK}' in their infos: leave it out")

    def _rows(self, observation: Any) -> tuple[list[np.ndarray], bool]:
        """The arrays of a batch of observations, and whether it was a single one."""
        space = self._env.observation_space
        try:
            parts = [np.asarray(part) for part in self._flat(observation)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            both = isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict)
            hint = "; reset() returns a pair, of which the observation is the first" if both else ""
            problem = f"{type(error).__name__} {error}".partition("\n")[0]
            raise ConfigError(f"the observation does not fit {space}: {problem}{hint}") from None
        is_single = all(part.ndim == len(shape) for part, (_, shape, _) in zip(parts, self._leaves, strict=True))
        arrays = []
        for part, (name, shape, dtype) in zip(parts, self._leaves, strict=True):
            rows = part[None] if is_single else part
            if rows.shape[1:] != shape or (arrays and len(rows) != len(arrays[0])):
                expected = f"{shape}, or (n, {', '.join(map(str, shape))}) for a batch".replace(", )", ")")
                raise ConfigError(f"{name or 'observation'} has shape {part.shape}: expected {expected}")
            arrays.append(rows.astype(dtype, copy=False))
        return arrays, is_single

    def _mask(self, alive: Any, count: int) -> Any:
        """Which agents are active in every row; empty where there is no team."""
        if not self._team:
            if alive is not None:
                raise ConfigError(f"alive is for a team, but {self._env.title} has one agent: leave it out")
            return ()
        mask = np.asarray(True if alive is None else alive, bool)
        if mask.shape not in ((), self._team, (count, *self._team)):
            raise ConfigError(f"alive has shape {mask.shape}: expected {self._team}, or {(count, *self._team)}")
        return np.broadcast_to(mask, (count, *self._team))

    def _memory(self, state: Any, fresh: Any, is_single: bool) -> Any:
        memory = jax.tree.map(lambda part: np.asarray(part)[None], state) if is_single else state
        shapes = [[np.shape(part) for part in jax.tree.leaves(tree)] for tree in (memory, fresh)]
        if shapes[0] != shapes[1]:
            raise ConfigError(f"state has shapes {shapes[0]}, expected {shapes[1]}: pass what the last call returned")
        return memory


@jax.jit
def decide(
    algorithm: Algorithm, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: Any, time: Any
) -> tuple[Any, Any]:
    """The actions of a batch and its next memory; sampled with the keys of that time, or the most likely ones."""
    return algorithm.decide(env, params, observation, alive, memory, keys_at(keys, time))


def keys_at(keys: jax.Array | None, time: Any) -> jax.Array | None:
    """The keys of a time step; none if actions are not sampled."""
    return None if keys is None else fold_each(keys, time)


def _along(rows: np.ndarray, array: Any) -> np.ndarray:
    return rows.reshape(-1, *[1] * (np.ndim(array) - 1))


def _conversions(env: Environment) -> tuple[Callable[[Any], list[Any]], Callable[[np.ndarray], Any]]:
    """From an observation to its arrays, and from rows of actions to the environment's own.

    A Gymnasium environment is made once to see its spaces: they have offsets, shapes and bounds that ours do not.
    """
    pool = env.host_pool
    if pool is None or pool.spec.is_vector or env.team_size is not None:
        return lambda observation: _parts(env.observation_space, observation), lambda rows: _clipped(env, rows)
    try:
        single: Any = single_maker(pool.spec)()
    except UnusableError as error:
        raise ConfigError(str(error)) from error
    with contextlib.closing(single):
        return single.flat, single.actions


def _parts(space: Space, value: Any) -> list[Any]:
    if isinstance(space, Dict):
        return [leaf for name, part in sorted(space.spaces) for leaf in _parts(part, value[name])]
    return [value]


def _clipped(env: Environment, rows: np.ndarray) -> np.ndarray:
    space = env.action_space
    return np.clip(rows, space.low, space.high) if isinstance(space, Box) else rows
