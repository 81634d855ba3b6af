"""Environments that are not JAX, in the shape of those that are: `step` is a stage that runs on the host."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta.envs.base import Environment, Finished, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.stage import per_environment, stage
from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import Space, assemble, leaves
from fragmenta_host.catalogue import Spec
from fragmenta_host.pool import Pool, PoolOptions


@dataclasses.dataclass(frozen=True)
class HostEnvironment(Environment):
    """Environments of another package, stepped outside compiled programs by a pool.

    The world has the index of each environment in place of its state; every environment is seeded by the key of its
    index, so how they are divided among replicas and processes changes nothing.
    """

    pool: Pool
    seen: int | None = None
    """With several agents: how many of them a trace sees; see TeamEnvironment."""

    @property
    def title(self) -> str:
        """Package and name."""
        return str(self.pool.spec)

    def where(self, num_envs: int, parts: int) -> str:
        return self.pool.where(num_envs, parts)

    @property
    def num_agents(self) -> int:
        return self.seen or self.team_size or 1

    @property
    def team_size(self) -> int | None:
        return self.pool.description.agents

    def with_agents(self, count: int) -> "HostEnvironment":
        return dataclasses.replace(self, seen=None if count == (self.team_size or 1) else count)

    @property
    def observation_space(self) -> Space:
        return self.pool.description.observation

    @property
    def action_space(self) -> Space:
        return self.pool.description.action

    @property
    def shortest_cut(self) -> int:
        return 1  # any step may be cut off: by a time limit, by a wrapper, by a fault

    @contextlib.contextmanager
    def opened(self, parts: int = 1) -> Iterator[None]:
        """Whatever fails inside because an environment did is raised as the fault of that environment."""
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
        seen = self._observed(count), self._alive(count)
        observation, alive = jax.pure_callback(self._reset, seen, seeds_of(keys))
        zero, none = jnp.zeros(count, jnp.float32), jnp.zeros(count, jnp.int32)
        index = jnp.arange(count, dtype=jnp.int32)
        return World(index, observation, (), none, zero, Finished(none, zero, none), alive)

    @stage
    def step(self, world: World, action: jax.Array) -> tuple[World, Transition]:
        """Advance every environment by one step; those whose episode ended start a new one."""
        count = action.shape[0]
        shape = jax.ShapeDtypeStruct
        counts, flags = shape((count,), jnp.int32), shape((count,), jnp.bool_)
        sums = shape((count,), jnp.float32)
        rewards = shape((count, *self._team()), jnp.float32)
        seen = self._observed(count), self._alive(count)
        results = (*seen, *seen, rewards, flags, flags, counts, sums, Finished(counts, sums, counts))
        found = jax.pure_callback(
            self._step, results, world.state, action, world.episode_length, world.episode_return, world.finished
        )
        observation, alive, next_observation, next_alive, reward, terminated, truncated, length, total, finished = found
        transition = Transition(
            world.observation, action, reward, terminated, truncated, next_observation, world.alive, next_alive
        )
        return World(world.state, observation, world.key, length, total, finished, alive), transition

    def _reset(self, seeds: Any) -> Any:
        parts, alive = self.pool.reset(np.asarray(seeds))
        return assemble(self.observation_space, iter(parts)), alive if self._team() else ()

    @per_environment
    def _step(self, index: Any, action: Any, length: Any, total: Any, finished: Any) -> Any:
        """One step in numpy: what the pool answers, and the episode counts."""
        found = self.pool.step(int(index[0]), np.asarray(action))
        reward = found.reward if found.reward.ndim == 1 else found.reward.mean(axis=1)
        length, total = np.asarray(length) + 1, np.asarray(total) + reward
        shown = np.clip(found.reward, -1, 1) if self.pool.description.clips_rewards else found.reward
        if (done := found.ended).any():
            finished = Finished(
                np.asarray(finished[0]) + done,
                np.asarray(finished[1]) + np.where(done, total, 0).astype(np.float32),
                np.asarray(finished[2]) + np.where(done, length, 0).astype(np.int32),
            )
            length, total = np.where(done, 0, length).astype(np.int32), np.where(done, 0, total).astype(np.float32)
        space, team = self.observation_space, self._team()
        return (
            assemble(space, iter(found.observation)),
            found.alive if team else (),
            assemble(space, iter(found.next_observation)),
            found.next_alive if team else (),
            shown,
            found.terminated,
            found.truncated,
            length,
            total,
            finished,
        )

    def _team(self) -> tuple[int, ...]:
        return () if self.team_size is None else (self.num_agents,)

    def _observed(self, count: int) -> Any:
        shapes = (
            jax.ShapeDtypeStruct((count, *self._team(), *shape), jnp.dtype(dtype))
            for _, shape, dtype in leaves(self.observation_space)
        )
        return assemble(self.observation_space, shapes)

    def _alive(self, count: int) -> Any:
        return jax.ShapeDtypeStruct((count, *self._team()), jnp.bool_) if self._team() else ()


def seeds_of(keys: jax.Array) -> jax.Array:
    """The seed of each environment, by its key."""
    return jax.vmap(lambda key: jax.random.bits(key, dtype=jnp.uint32) >> 1)(keys)


def make(spec: Spec, options: PoolOptions | None = None) -> HostEnvironment:
    """The environment of that package and name; a process is started to find out what it is."""
    try:
        pool = Pool(spec, options)
    except UnusableError as error:
        raise ConfigError(str(error)) from error
    return HostEnvironment(pool.description.max_steps or 2**31 - 1, pool)
