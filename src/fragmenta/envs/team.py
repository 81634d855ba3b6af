"""Environments with several agents: a fixed agent axis after the environments, and a mask of who takes part."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.envs.base import Environment, Finished, Transition, World


@dataclasses.dataclass(frozen=True)
class TeamEnvironment(Environment):
    """Several agents that act at once, as pure functions of one instance.

    A subclass writes `initial`, `observe` (one row per agent), `advance` (one action, one reward per agent) and, where
    agents can drop out, `alive`. An episode ends for all agents at once; its return is the mean over the agents.
    """

    agents: int = dataclasses.field(default=1, kw_only=True)
    """How many agents there are; those that drop out keep their place on the axis."""
    seen: int | None = dataclasses.field(default=None, kw_only=True)
    """How many of them a trace sees. Replicas along the agents are traced with fewer; they never run `step`."""

    @property
    def num_agents(self) -> int:
        return self.agents if self.seen is None else self.seen

    def with_agents(self, count: int) -> "TeamEnvironment":
        return dataclasses.replace(self, seen=None if count == self.agents else count)

    def alive(self, state: Any) -> jax.Array:
        """Which agents take part, one flag each; all of them unless a subclass says otherwise."""
        return jnp.ones((self.agents,), bool)

    def _reset_one(self, key: jax.Array) -> World:
        next_key, key = jax.random.split(key)
        state = self.initial(key)
        zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        observation, alive = self._seen((self.observe(state), self.alive(state)))
        return World(state, observation, next_key, none, zero, Finished(none, zero, none), alive)

    def _step_one(self, world: World, action: jax.Array) -> tuple[World, Transition]:
        next_key, key = jax.random.split(world.key)
        everybody = jnp.resize(action, (self.agents, *action.shape[1:]))
        state, reward, terminated = self.advance(world.state, everybody, jax.random.fold_in(key, 1))
        reward = jnp.where(self.alive(world.state), jnp.asarray(reward, jnp.float32), 0.0)
        length, total = world.episode_length + 1, world.episode_return + jnp.mean(reward)
        truncated = length >= self.max_steps
        done = terminated | truncated
        after, still_alive = self.observe(state), self.alive(state) & ~terminated
        fresh = self.initial(key)
        state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, state)
        finished = Finished(
            world.finished.episodes + done,
            world.finished.returns + jnp.where(done, total, 0.0),
            world.finished.lengths + jnp.where(done, length, 0),
        )
        observation, alive = self._seen((self.observe(state), self.alive(state)))
        reward, after, still_alive = self._seen((reward, after, still_alive))
        transition = Transition(
            world.observation, action, reward, terminated, truncated, after, world.alive, still_alive
        )
        world = World(
            state,
            observation,
            next_key,
            jnp.where(done, 0, length),
            jnp.where(done, 0.0, total),
            finished,
            alive,
        )
        return world, transition

    def _seen(self, rows: Any) -> Any:
        return jax.tree.map(lambda x: x[: self.num_agents], rows)
