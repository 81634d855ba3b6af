"""Host environments behind the same interface as JAX environments: `step` is a stage that runs on the host."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.envs.base import Environment, Finished, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.stage import per_environment, stage
from fragmenta_core.faults import EnvironmentFaultError, UnusableError
from fragmenta_core.spaces import Box, Space, assemble, leaves
from fragmenta_host.catalogue import Spec
from fragmenta_host.options import PoolOptions
from fragmenta_host.pool import ClosedPoolError, Pool


def _is_unexpected(record: logging.LogRecord) -> bool:
    """JAX logs every exception of a callback with its traceback; faults of environments are reported by the run, and a
    run that the user ended needs no report."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, EnvironmentFaultError | ClosedPoolError | KeyboardInterrupt)


logging.getLogger("jax._src.callback").addFilter(_is_unexpected)


@dataclasses.dataclass(frozen=True)
class HostEnvironment(Environment):
    """Environments of another package, stepped outside compiled programs by a pool.

    The world holds the index of each environment in place of its state. Every environment is seeded by the key of its
    index, so its behaviour does not depend on how environments are divided among replicas and processes.
    """

    pool: Pool
    visible_agents: int | None = None
    """For teams: how many agents a trace sees; see TeamEnvironment."""

    @property
    def title(self) -> str:
        """Package and name."""
        return str(self.pool.spec)

    @property
    def host_pool(self) -> Pool:
        return self.pool

    def through(self, pool: Pool) -> "HostEnvironment":
        return dataclasses.replace(self, pool=pool)

    def where(self, num_envs: int, parts: int) -> str:
        return self.pool.where(num_envs, parts)

    @property
    def num_agents(self) -> int:
        return self.visible_agents or self.team_size or 1

    @property
    def team_size(self) -> int | None:
        return self.pool.description.agents

    def with_agents(self, count: int) -> "HostEnvironment":
        return dataclasses.replace(self, visible_agents=None if count == (self.team_size or 1) else count)

    @property
    def observation_space(self) -> Space:
        return self.pool.description.observation

    @property
    def action_space(self) -> Space:
        return self.pool.description.action

    @property
    def stacks_frames(self) -> bool:
        spec, space = self.pool.spec, self.observation_space
        if self.team_size is not None or not isinstance(space, Box) or spec.package in ("envpool", "pettingzoo"):
            return False  # EnvPool's tasks differ in what they stack along the first axis
        return spec.package == "ale" or space.shape[:1] == (spec.stack,) != (1,)

    @property
    def shortest_cut(self) -> int:
        return 1  # any step may be truncated: by a time limit, a wrapper, or a fault

    @contextlib.contextmanager
    def opened(self, parts: int = 1) -> Iterator[None]:
        """If an environment failed, raise its fault in place of the errors that follow from it."""
        self.pool.open(parts)
        try:
            yield
        except Exception as error:
            if self.pool.failure is not None and error is not self.pool.failure:
                raise self.pool.failure from None
            raise
        finally:
            self.pool.close()

    def reset(self, keys: jax.Array) -> World:
        count = keys.shape[0]
        shapes = self._observation_shapes(count), self._alive_shapes(count)
        observation, alive = jax.pure_callback(self._reset, shapes, seeds_of(keys))
        zeros, counts = jnp.zeros(count, jnp.float32), jnp.zeros(count, jnp.int32)
        index = jnp.arange(count, dtype=jnp.int32)
        return World(index, observation, (), counts, zeros, Finished(counts, zeros, counts), alive)

    @stage
    def step(self, world: World, action: jax.Array) -> tuple[World, Transition]:
        """Advance every environment by one step; those whose episode ended start a new one."""
        count = action.shape[0]
        shape = jax.ShapeDtypeStruct
        counts, flags = shape((count,), jnp.int32), shape((count,), jnp.bool_)
        sums = shape((count,), jnp.float32)
        rewards = shape((count, *self._team()), jnp.float32)
        views = self._observation_shapes(count), self._alive_shapes(count)
        shapes = (*views, *views, rewards, flags, flags, counts, sums, Finished(counts, sums, counts))
        results = jax.pure_callback(
            self._step, shapes, world.state, action, world.episode_length, world.episode_return, world.finished
        )
        observation, alive, next_observation, next_alive, reward, terminated, truncated, *episodes = results
        length, total, finished = episodes
        transition = Transition(
            world.observation, action, reward, terminated, truncated, next_observation, world.alive, next_alive
        )
        return World(world.state, observation, world.key, length, total, finished, alive), transition

    def _reset(self, seeds: Any) -> Any:
        parts, alive = self.pool.reset(np.asarray(seeds))
        return jax.tree.unflatten(_structure(self.observation_space), parts), alive if self._team() else ()

    @per_environment
    def _step(self, index: Any, action: Any, length: Any, total: Any, finished: Any) -> Any:
        """One step in numpy: the pool's results, and the episode statistics."""
        stepped = self.pool.step(int(index[0]), np.asarray(action))
        reward = stepped.reward if stepped.reward.ndim == 1 else stepped.reward.mean(axis=1)
        length, total = np.asarray(length) + 1, np.asarray(total) + reward
        learner_reward = np.clip(stepped.reward, -1, 1) if self.pool.description.clips_rewards else stepped.reward
        if (done := stepped.ended).any():
            finished = Finished(
                np.asarray(finished[0]) + done,
                np.asarray(finished[1]) + np.where(done, total, 0).astype(np.float32),
                np.asarray(finished[2]) + np.where(done, length, 0).astype(np.int32),
            )
            length, total = np.where(done, 0, length).astype(np.int32), np.where(done, 0, total).astype(np.float32)
        structure, team = _structure(self.observation_space), self._team()
        return (
            jax.tree.unflatten(structure, stepped.observation),
            stepped.alive if team else (),
            jax.tree.unflatten(structure, stepped.next_observation),
            stepped.next_alive if team else (),
            learner_reward,
            stepped.terminated,
            stepped.truncated,
            length,
            total,
            finished,
        )

    def _team(self) -> tuple[int, ...]:
        return () if self.team_size is None else (self.num_agents,)

    def _observation_shapes(self, count: int) -> Any:
        shapes = (
            jax.ShapeDtypeStruct((count, *self._team(), *shape), jnp.dtype(dtype))
            for _, shape, dtype in leaves(self.observation_space)
        )
        return assemble(self.observation_space, shapes)

    def _alive_shapes(self, count: int) -> Any:
        return jax.ShapeDtypeStruct((count, *self._team()), jnp.bool_) if self._team() else ()


@functools.cache
def _structure(space: Space) -> Any:
    """The structure of observations, to build them from their arrays."""
    return jax.tree.structure(assemble(space, iter(range(len(leaves(space))))))


def seeds_of(keys: jax.Array) -> jax.Array:
    """The seed of each environment, derived from its key."""
    return jax.vmap(lambda key: jax.random.bits(key, dtype=jnp.uint32) >> 1)(keys)


def make(spec: Spec, options: PoolOptions | None = None) -> HostEnvironment:
    """The environment with that package and name; its spaces are found in a temporary process."""
    try:
        pool = Pool(spec, options)
    except UnusableError as error:
        raise ConfigError(str(error)) from error
    return HostEnvironment(pool.description.max_steps or 2**31 - 1, pool)
