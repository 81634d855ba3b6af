"""Evaluate a policy: the returns of a fixed number of episodes, one per environment.

Every environment contributes only its first episode, so that long episodes count as often as short ones. Steps that it
takes afterwards, until the others are done, are ignored, so the policy's memory need not be reset.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment, World
from fragmenta.envs.host import seeds_of
from fragmenta.errors import ConfigError
from fragmenta.rl import keys_by_index
from fragmenta.runs.predicting import decide, keys_at
from fragmenta_core.spaces import assemble
from fragmenta_host.pool import Pool

LONGEST = 100_000
"""Episodes are truncated after this many steps, because an environment may have no time limit."""
CHUNK = 1_024
"""Steps per compiled call; interrupts are handled between calls."""
HOST_ENVS = 64
"""Maximum number of environments on the host at a time, because each takes memory."""
APART = 0xE7A1
"""Folded into the key, so that evaluation and training with the same seed use different random numbers."""
RESAMPLES = 2_000


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes, in the order of their environments."""

    returns: np.ndarray
    lengths: np.ndarray
    seed: int
    deterministic: bool
    unfinished: int = 0
    """Number of episodes that the evaluation truncated at its step limit."""

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """The sample standard deviation of the returns; 0 for one episode."""
        return float(np.std(self.returns, ddof=1)) if len(self.returns) > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% bootstrap confidence interval of the mean return; of zero width for one episode."""
        rng, count = np.random.default_rng(0), len(self.returns)
        means = [self.returns[rng.integers(count, size=count)].mean() for _ in range(RESAMPLES)]
        low, high = np.percentile(means, (2.5, 97.5))
        return float(low), float(high)

    def as_record(self) -> dict[str, Any]:
        """The evaluation as plain numbers."""
        low, high = self.interval
        return {
            "deterministic": self.deterministic,
            "episodes": len(self.returns),
            "seed": self.seed,
            "return_mean": self.mean,
            "return_std": self.std,
            "return_low": low,
            "return_high": high,
            "return_min": float(np.min(self.returns)),
            "return_max": float(np.max(self.returns)),
            "length_mean": float(np.mean(self.lengths)),
            "length_min": int(np.min(self.lengths)),
            "length_max": int(np.max(self.lengths)),
            "unfinished": self.unfinished,
        }


def evaluate(
    algorithm: Algorithm,
    env: Environment,
    params: Any,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int | None = None,
) -> Evaluation:
    """Play `episodes` episodes with the most likely actions, or with sampled actions as in training.

    The same seed gives the same episodes, and more episodes extend fewer. Compiled programs are reused by later calls
    with an equal algorithm, environment and number of episodes. A separate pool steps environments on the host, so
    training that uses `env` is not affected.
    """
    if episodes < 1:
        raise ConfigError(f"episodes is {episodes}: it must be at least 1")
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps is {max_steps}: it must be at least 1")
    if seed < 0:
        raise ConfigError(f"seed is {seed}: it must be at least 0")
    limit = max_steps or LONGEST
    env_keys, act_keys = episode_keys(seed, episodes)
    params, keys = jax.device_put(params), None if deterministic else act_keys
    if env.host_pool:
        returns, lengths, ended = _play_on_host(algorithm, env, env.host_pool.twin(), params, env_keys, keys, limit)
    else:
        returns, lengths, ended = _play(algorithm, env, params, env_keys, keys, limit)
    unfinished = int(np.sum(~np.asarray(ended)))
    return Evaluation(np.asarray(returns, np.float64), np.asarray(lengths), seed, deterministic, unfinished)


def episode_keys(seed: int, episodes: int) -> tuple[jax.Array, jax.Array]:
    """For every episode, a key for its environment and one for its actions; they depend only on seed and index."""
    key = jax.random.fold_in(jax.random.key(seed), APART)
    env_key, act_key = jax.random.split(key)
    return keys_by_index(env_key, episodes), keys_by_index(act_key, episodes)


class _Episodes(NamedTuple):
    """The current step, and per environment: its world, the memory, and the first episode's return and length."""

    time: jax.Array
    world: World
    memory: Any
    returns: jax.Array
    lengths: jax.Array
    ended: jax.Array


def _play(
    algorithm: Algorithm, env: Environment, params: Any, env_keys: jax.Array, act_keys: jax.Array | None, limit: int
) -> tuple[Any, Any, Any]:
    episodes = _start(algorithm, env, env_keys)
    for until in range(CHUNK, limit + CHUNK, CHUNK):
        episodes = _advance(algorithm, env, params, act_keys, episodes, min(until, limit))
        if np.asarray(episodes.ended).all():
            break
    world = episodes.world
    returns = jnp.where(episodes.ended, episodes.returns, world.episode_return)
    return returns, jnp.where(episodes.ended, episodes.lengths, world.episode_length), episodes.ended


@jax.jit
def _start(algorithm: Algorithm, env: Environment, keys: jax.Array) -> _Episodes:
    count, world = keys.shape[0], env.reset(keys)
    memory = algorithm.fresh_memory(count, env.num_agents)
    zeros, counts = jnp.zeros(count), jnp.zeros(count, jnp.int32)
    return _Episodes(jnp.zeros((), jnp.int32), world, memory, zeros, counts, counts > 0)


@jax.jit
def _advance(
    algorithm: Algorithm, env: Environment, params: Any, keys: jax.Array | None, episodes: _Episodes, until: jax.Array
) -> _Episodes:
    """Step until all first episodes have ended, or until step `until`."""

    def step(episodes: _Episodes) -> _Episodes:
        now = keys_at(keys, episodes.time)
        world = episodes.world
        action, memory = algorithm.decide(env, params, world.observation, world.alive, episodes.memory, now)
        world, _ = env.step(world, action)
        first = ~episodes.ended & (world.finished.episodes > 0)
        returns = jnp.where(first, world.finished.returns, episodes.returns)
        lengths = jnp.where(first, world.finished.lengths, episodes.lengths)
        return _Episodes(episodes.time + 1, world, memory, returns, lengths, episodes.ended | first)

    return jax.lax.while_loop(lambda p: (p.time < until) & ~jnp.all(p.ended), step, episodes)


def _play_on_host(
    algorithm: Algorithm, env: Environment, pool: Pool, params: Any, env_keys: jax.Array, act_keys: Any, limit: int
) -> tuple[Any, Any, Any]:
    count = len(env_keys)
    size = min(HOST_ENVS, count)
    separate, parts = env.through(pool), []
    with separate.opened():
        for low in range(0, count, size):
            # The last part is filled up from the front, so that its shape needs no new compilation.
            rows = np.arange(low, low + size) % count
            keys = None if act_keys is None else act_keys[rows]
            parts.append(_play_part(algorithm, pool, env, params, np.asarray(seeds_of(env_keys[rows])), keys, limit))
    returns, lengths, ended = (np.concatenate(part)[:count] for part in zip(*parts, strict=True))
    return returns, lengths, ended


def _play_part(
    algorithm: Algorithm,
    pool: Pool,
    env: Environment,
    params: Any,
    seeds: np.ndarray,
    keys: jax.Array | None,
    limit: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One episode per environment; `env` only provides the spaces and lets later evaluations reuse compiled code."""
    count, space = len(seeds), env.observation_space
    parts, alive = pool.reset(seeds)
    memory = algorithm.fresh_memory(count, env.num_agents)
    returns, lengths, ended = np.zeros(count), np.zeros(count, np.int32), np.zeros(count, bool)
    for time in range(limit):
        inputs = assemble(space, iter(parts)), alive if env.team_size else ()
        action, memory = decide(algorithm, env, params, *inputs, memory, keys, time)
        result = pool.step(0, np.asarray(action))
        reward = result.reward if result.reward.ndim == 1 else result.reward.mean(axis=1)
        returns, lengths = returns + np.where(ended, 0.0, reward), lengths + ~ended
        ended = ended | result.ended
        if ended.all():
            break
        parts, alive = result.observation, result.alive
    return returns, lengths, ended
