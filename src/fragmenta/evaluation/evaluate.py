"""How good a policy is: the returns of exactly so many episodes, each of an environment of its own.

Every environment gives one episode, its first, so that long episodes count as often as short ones. What it plays
afterwards, until the others are done, counts for nothing, so no memory has to be emptied.
"""

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment, HostEnvironment, World
from fragmenta.envs.host import seeds_of
from fragmenta.errors import ConfigError
from fragmenta.rl import fold_each, keys_by_index
from fragmenta.runs.background import lower_priority
from fragmenta_core.spaces import assemble

LONGEST = 100_000
"""Episodes that go on for so many steps are cut off, because environments need not have a limit of their own."""
CHUNK = 1_024
"""Steps of one launch: after each, an interruption is heard."""
HOST_ENVS = 64
"""So many environments on the host at a time, because each takes memory."""
APART = 0xE7A1
"""Keeps an evaluation's random numbers apart from those of a training with the same seed."""
RESAMPLES = 2_000


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes, in the order of their environments."""

    returns: np.ndarray
    lengths: np.ndarray
    seed: int
    deterministic: bool
    unfinished: int = 0
    """How many episodes were cut off by the evaluation, because they went on for too long."""

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """The standard deviation of the returns, as of a sample; 0 for one episode."""
        return float(np.std(self.returns, ddof=1)) if len(self.returns) > 1 else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """In which the true mean is with 95% confidence, by bootstrapping; as wide as nothing for one episode."""
        rng, count = np.random.default_rng(0), len(self.returns)
        means = [self.returns[rng.integers(count, size=count)].mean() for _ in range(RESAMPLES)]
        low, high = np.percentile(means, (2.5, 97.5))
        return float(low), float(high)

    def as_record(self) -> dict[str, Any]:
        """The outcome as plain numbers."""
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
    """Play so many episodes with the likeliest actions, or with actions as drawn in training.

    The same seed gives the same episodes, and the first of many are those of few. What is compiled for one call serves
    all later ones with an equal algorithm, environment and number of episodes. Environments on the host are played in
    processes of their own, so a training that uses `env` goes on undisturbed.
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
    if isinstance(env, HostEnvironment):
        returns, lengths, ended = _play_on_host(algorithm, env, params, env_keys, keys, limit)
    else:
        returns, lengths, ended = _play(algorithm, env, params, env_keys, keys, limit)
    unfinished = int(np.sum(~np.asarray(ended)))
    return Evaluation(np.asarray(returns, np.float64), np.asarray(lengths), seed, deterministic, unfinished)


def episode_keys(seed: int, episodes: int) -> tuple[jax.Array, jax.Array]:
    """For every episode, by its index alone: the key of its environment, and that of its actions."""
    key = jax.random.fold_in(jax.random.key(seed), APART)
    env_key, act_key = jax.random.split(key)
    return keys_by_index(env_key, episodes), keys_by_index(act_key, episodes)


class _Played(NamedTuple):
    """So far, per environment: its world, what is remembered, and the return and length of its first episode."""

    time: jax.Array
    world: World
    memory: Any
    returns: jax.Array
    lengths: jax.Array
    ended: jax.Array


def _play(
    algorithm: Algorithm, env: Environment, params: Any, env_keys: jax.Array, act_keys: jax.Array | None, limit: int
) -> tuple[Any, Any, Any]:
    played = _start(algorithm, env, env_keys)
    for until in range(CHUNK, limit + CHUNK, CHUNK):
        played = _go_on(algorithm, env, params, act_keys, played, min(until, limit))
        if np.asarray(played.ended).all():
            break
    world = played.world
    returns = jnp.where(played.ended, played.returns, world.episode_return)
    return returns, jnp.where(played.ended, played.lengths, world.episode_length), played.ended


@jax.jit
def _start(algorithm: Algorithm, env: Environment, keys: jax.Array) -> _Played:
    count, world = keys.shape[0], env.reset(keys)
    zeros, none = jnp.zeros(count), jnp.zeros(count, jnp.int32)
    return _Played(jnp.zeros((), jnp.int32), world, algorithm.fresh_memory(count), zeros, none, none > 0)


@jax.jit
def _go_on(
    algorithm: Algorithm, env: Environment, params: Any, keys: jax.Array | None, played: _Played, until: jax.Array
) -> _Played:
    """Until all first episodes have ended, or so many steps were taken."""

    def step(played: _Played) -> _Played:
        now = _keys_now(keys, played.time)
        action, memory = algorithm.decide(env, params, played.world.observation, played.world.alive, played.memory, now)
        world, _ = env.step(played.world, action)
        first = ~played.ended & (world.finished.episodes > 0)
        returns = jnp.where(first, world.finished.returns, played.returns)
        lengths = jnp.where(first, world.finished.lengths, played.lengths)
        return _Played(played.time + 1, world, memory, returns, lengths, played.ended | first)

    return jax.lax.while_loop(lambda p: (p.time < until) & ~jnp.all(p.ended), step, played)


def _play_on_host(
    algorithm: Algorithm, env: HostEnvironment, params: Any, env_keys: jax.Array, act_keys: Any, limit: int
) -> tuple[Any, Any, Any]:
    count = len(env_keys)
    size = min(HOST_ENVS, count)
    own, parts = dataclasses.replace(env, pool=env.pool.twin()), []
    with own.opened():
        for low in range(0, count, size):
            # The last part is filled up from the front, so that nothing is compiled anew for it.
            rows = np.arange(low, low + size) % count
            keys = None if act_keys is None else act_keys[rows]
            parts.append(_play_part(algorithm, own, env, params, np.asarray(seeds_of(env_keys[rows])), keys, limit))
    returns, lengths, ended = (np.concatenate(part)[:count] for part in zip(*parts, strict=True))
    return returns, lengths, ended


def _play_part(
    algorithm: Algorithm,
    own: HostEnvironment,
    env: HostEnvironment,
    params: Any,
    seeds: np.ndarray,
    keys: jax.Array | None,
    limit: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One episode each; `env` only stands for the spaces, and lets later evaluations use what was compiled."""
    count, space = len(seeds), env.observation_space
    shown, alive = own.pool.reset(seeds)
    memory = algorithm.fresh_memory(count)
    returns, lengths, ended = np.zeros(count), np.zeros(count, np.int32), np.zeros(count, bool)
    for time in range(limit):
        seen = assemble(space, iter(shown)), alive if env.team_size else ()
        action, memory = _decide(algorithm, env, params, *seen, memory, keys, time)
        found = own.pool.step(0, np.asarray(action))
        reward = found.reward if found.reward.ndim == 1 else found.reward.mean(axis=1)
        returns, lengths = returns + np.where(ended, 0.0, reward), lengths + ~ended
        ended = ended | found.ended
        if ended.all():
            break
        shown, alive = found.observation, found.alive
    return returns, lengths, ended


@jax.jit
def _decide(
    algorithm: Algorithm, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: Any, time: Any
) -> tuple[Any, Any]:
    return algorithm.decide(env, params, observation, alive, memory, _keys_now(keys, time))


def _keys_now(keys: jax.Array | None, time: Any) -> jax.Array | None:
    return None if keys is None else fold_each(keys, time)


class BackgroundEvaluation:
    """Evaluations in a thread of their own, one at a time, while something else goes on."""

    def __init__(self, algorithm: Algorithm, env: Environment, episodes: int, seed: int, deterministic: bool) -> None:
        self._evaluate = lambda params: evaluate(algorithm, env, params, episodes, seed, deterministic)
        self._thread = ThreadPoolExecutor(1, "fragmenta-evaluation", lower_priority)
        self._pending: list[tuple[int, Future[Evaluation]]] = []

    def submit(self, params: Any, steps: int) -> bool:
        """Evaluate these parameters, of which a copy is taken, as those after so many steps.

        False, and nothing is done, if the one before is still under way.
        """
        if any(not future.done() for _, future in self._pending):
            return False
        params = jax.device_get(params)
        self._pending.append((steps, self._thread.submit(lambda: self._evaluate(params))))
        return True

    def finished(self, wait: bool = False) -> list[tuple[int, Evaluation | BaseException]]:
        """Steps and outcome, or what was raised, of those that have ended since this was last asked; with `wait`, of
        all."""
        ready = [(steps, future) for steps, future in self._pending if wait or future.done()]
        self._pending = [entry for entry in self._pending if entry not in ready]
        return [(steps, future.exception() or future.result()) for steps, future in ready]

    def close(self) -> None:
        """Wait for the one that is under way, and end the thread."""
        self._thread.shutdown()
