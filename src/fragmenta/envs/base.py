"""The interface of all environments: a subclass defines one environment, this turns it into a self-resetting batch."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.stage import stage
from fragmenta_core.spaces import Space
from fragmenta_host.pool import Pool


class Finished(NamedTuple):
    """Per environment: episodes ended since the last `clear_finished`, and the sums of their returns and lengths."""

    episodes: Any
    returns: Any
    lengths: Any


class World(NamedTuple):
    """The state of a batch of environments, which `step` reads and writes."""

    state: Any
    observation: Any
    """An array with one row per environment, or a dictionary of them."""
    key: Any
    """One per environment; empty for host environments."""
    episode_length: jax.Array
    episode_return: jax.Array
    finished: Finished
    alive: Any = ()
    """For teams: which agents are active, per environment. Otherwise empty."""

    def clear_finished(self) -> "World":
        """Reset the counts of finished episodes."""
        return self._replace(finished=jax.tree.map(jnp.zeros_like, self.finished))


class Transition(NamedTuple):
    """One step of every environment; `next_observation` is from before any reset, so bootstrap with 1 - terminated."""

    observation: Any
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: Any
    alive: Any = ()
    """For teams: which agents were active in the step; entries of the others are meaningless."""
    next_alive: Any = ()
    """For teams: which agents are active after it, before any reset."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment as pure functions of one instance; batching, resets and episode statistics are handled here.

    A subclass defines `initial`, `observe`, `advance` and its spaces.
    """

    max_steps: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let instances pass through JAX functions as constants, stages included."""
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_static(cls)

    @property
    def title(self) -> str:
        """The name shown in a run."""
        return type(self).__name__

    def where(self, num_envs: int, parts: int) -> str:
        """A description of where `num_envs` environments run if `parts` replicas step them."""
        return "in JAX, as part of the compiled programs"

    @property
    def num_agents(self) -> int:
        """How many agents act at once; fewer than the team in some traces."""
        return 1

    @property
    def team_size(self) -> int | None:
        """The number of agents, if arrays have an agent axis; otherwise None."""
        return None

    def with_agents(self, count: int) -> "Environment":
        """The environment as seen by a fragment that holds only `count` of the agents; for tracing only."""
        assert count == 1
        return self

    @property
    def host_pool(self) -> Pool | None:
        """The pool that steps the environments outside compiled programs; None for environments in JAX."""
        return None

    @property
    def is_replayable(self) -> bool:
        """Whether the state holds everything, so that a run can return to an earlier state."""
        return self.host_pool is None

    @property
    def restarts(self) -> int:
        """How many environments were restarted after a fault, in this run."""
        return self.host_pool.restarted if self.host_pool else 0

    @property
    def failure(self) -> BaseException | None:
        """The fault of an environment that ended the run, if there was one."""
        return self.host_pool.failure if self.host_pool else None

    @property
    def step_timeout(self) -> float:
        """How many seconds a step on the host may take; 0 for environments in JAX."""
        return self.host_pool.options.timeout if self.host_pool else 0.0

    def through(self, pool: Pool) -> "Environment":
        """The same environments, stepped by another pool; environments in JAX need none."""
        return self

    @contextlib.contextmanager
    def opened(self, parts: int = 1) -> Iterator[None]:
        """Context of a run in which `parts` replicas step the environments, each an equal part of them."""
        yield

    @property
    def observation_space(self) -> Space:
        """The space of the observations that `observe` returns."""
        raise NotImplementedError

    @property
    def action_space(self) -> Space:
        """The space of the actions that `advance` takes."""
        raise NotImplementedError

    @property
    def stacks_frames(self) -> bool:
        """Whether an observation is a stack of the latest frames of its episode, the newest last; before the first one
        there are repeats of it, or zeros."""
        return False

    @property
    def shortest_cut(self) -> int:
        """The minimum number of steps before an episode can be truncated."""
        return self.max_steps

    def cut_off(self, state: Any) -> jax.Array:
        """Whether the episode is truncated here, before `max_steps`; if overridden, override `shortest_cut` as well."""
        return jnp.zeros((), bool)

    def initial(self, key: jax.Array) -> Any:
        """The state at the start of an episode."""
        raise NotImplementedError

    def observe(self, state: Any) -> Any:
        """The agent's observation of a state."""
        raise NotImplementedError

    def advance(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """The next state, the reward, and whether the episode terminated."""
        raise NotImplementedError

    def reset(self, keys: jax.Array) -> World:
        """A world with one environment per key."""
        return jax.vmap(self._reset_one)(keys)

    @stage
    def step(self, world: World, action: jax.Array) -> tuple[World, Transition]:
        """Advance every environment by one step; those whose episode ended start a new one."""
        return jax.vmap(self._step_one)(world, action)

    def next_states(self, world: World, action: jax.Array) -> Any:
        """The states after a step, before any reset, so that videos show how an episode ends."""
        return jax.vmap(
            lambda world, action: self._advance_one(world.state, action, jax.random.split(world.key)[1])[0]
        )(world, action)

    def alive(self, state: Any) -> Any:
        """For teams: which agents are active. Otherwise empty."""
        return ()

    def _visible_rows(self, rows: Any) -> Any:
        """For teams: the rows of the agents visible in a trace."""
        return rows

    def _all_actions(self, action: jax.Array) -> jax.Array:
        """For teams: an action for every agent, even where a trace sees fewer."""
        return action

    def _reset_one(self, key: jax.Array) -> World:
        next_key, key = jax.random.split(key)
        state = self.initial(key)
        zero, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        observation, alive = self._visible_rows((self.observe(state), self.alive(state)))
        return World(state, observation, next_key, count, zero, Finished(count, zero, count), alive)

    def _advance_one(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        return self.advance(state, self._all_actions(action), jax.random.fold_in(key, 1))

    def _step_one(self, world: World, action: jax.Array) -> tuple[World, Transition]:
        next_key, key = jax.random.split(world.key)
        state, reward, terminated = self._advance_one(world.state, action, key)
        reward = jnp.asarray(reward, jnp.float32)
        for alive in jax.tree.leaves(self.alive(world.state)):
            reward = jnp.where(alive, reward, 0.0)
        length, total = world.episode_length + 1, world.episode_return + jnp.mean(reward)
        truncated = (length >= self.max_steps) | self.cut_off(state)
        done = terminated | truncated
        next_view = self.observe(state), jax.tree.map(lambda alive: alive & ~terminated, self.alive(state))
        fresh = self.initial(key)
        state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, state)
        view = jax.tree.map(
            lambda new, old: jnp.where(done, new, old), (self.observe(fresh), self.alive(fresh)), next_view
        )
        finished = Finished(
            world.finished.episodes + done,
            world.finished.returns + jnp.where(done, total, 0.0),
            world.finished.lengths + jnp.where(done, length, 0),
        )
        reward, (next_observation, next_alive), (observation, alive) = self._visible_rows((reward, next_view, view))
        transition = Transition(
            world.observation, action, reward, terminated, truncated, next_observation, world.alive, next_alive
        )
        length, total = jnp.where(done, 0, length), jnp.where(done, 0.0, total)
        return World(state, observation, next_key, length, total, finished, alive), transition
