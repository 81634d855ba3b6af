"""One shape for every environment: single-environment functions in, a batched, self-resetting world out."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.stage import stage
from fragmenta_core.spaces import Space


class Finished(NamedTuple):
    """Per environment: how many episodes ended since the last `clear_finished`, their returns and lengths added up."""

    episodes: Any
    returns: Any
    lengths: Any


class World(NamedTuple):
    """All environments of a batch: what `step` reads and writes."""

    state: Any
    observation: Any
    """An array with one row per environment, or a dictionary of such arrays."""
    key: Any
    """One per environment, where environments are JAX."""
    episode_length: jax.Array
    episode_return: jax.Array
    finished: Finished
    alive: Any = ()
    """With several agents: which of them take part, per environment. With one: nothing."""

    def clear_finished(self) -> "World":
        """Start counting finished episodes anew."""
        return self._replace(finished=jax.tree.map(jnp.zeros_like, self.finished))


class Transition(NamedTuple):
    """One step of every environment; `next_observation` is the one before a reset, so bootstrap with 1 - terminated."""

    observation: Any
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_observation: Any
    alive: Any = ()
    """With several agents: which of them took part in the step, so that the others' entries mean nothing."""
    next_alive: Any = ()
    """And which of them take part after it, before any reset."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment as pure functions of one instance; batching, resets and episode counts are done here.

    A subclass writes `initial`, `observe` and `advance`, and says its spaces.
    """

    max_steps: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let instances pass through JAX functions as constants, stages included."""
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_static(cls)

    @property
    def title(self) -> str:
        """What a run calls it."""
        return type(self).__name__

    def where(self, num_envs: int, parts: int) -> str:
        """Where so many environments run, in words, if `parts` replicas step them."""
        return "in JAX, as part of the compiled programs"

    @property
    def num_agents(self) -> int:
        """How many agents act at once."""
        return 1

    @property
    def team_size(self) -> int | None:
        """How many agents there are in all, where arrays have an axis of agents; None where they have none."""
        return None

    def with_agents(self, count: int) -> "Environment":
        """The same environment as a fragment sees it that holds only `count` of the agents; for tracing only."""
        assert count == 1
        return self

    @contextlib.contextmanager
    def opened(self, parts: int = 1) -> Iterator[None]:
        """Around a run in which `parts` replicas step the environments, each an equal part of them."""
        yield

    @property
    def observation_space(self) -> Space:
        """What `observe` returns."""
        raise NotImplementedError

    @property
    def action_space(self) -> Space:
        """What `advance` takes."""
        raise NotImplementedError

    @property
    def shortest_cut(self) -> int:
        """No episode is cut off before so many steps."""
        return self.max_steps

    def cut_off(self, state: Any) -> jax.Array:
        """Whether the episode ends here without terminating, before `max_steps`; say so in `shortest_cut`, too."""
        return jnp.zeros((), bool)

    def initial(self, key: jax.Array) -> Any:
        """The state at the start of an episode."""
        raise NotImplementedError

    def observe(self, state: Any) -> Any:
        """What the agent sees of a state."""
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

    def led_to(self, world: World, action: jax.Array) -> Any:
        """The states that a step leads to, before any reset: pictures show how an episode ends."""
        return jax.vmap(
            lambda world, action: self._advance_one(world.state, action, jax.random.split(world.key)[1])[0]
        )(world, action)

    def alive(self, state: Any) -> Any:
        """With several agents: which of them take part. With one: nothing."""
        return ()

    def _seen(self, rows: Any) -> Any:
        """With several agents: the rows of those that a trace sees."""
        return rows

    def _everybody(self, action: jax.Array) -> jax.Array:
        """With several agents: an action for each, also where a trace sees fewer."""
        return action

    def _reset_one(self, key: jax.Array) -> World:
        next_key, key = jax.random.split(key)
        state = self.initial(key)
        zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        observation, alive = self._seen((self.observe(state), self.alive(state)))
        return World(state, observation, next_key, none, zero, Finished(none, zero, none), alive)

    def _advance_one(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        return self.advance(state, self._everybody(action), jax.random.fold_in(key, 1))

    def _step_one(self, world: World, action: jax.Array) -> tuple[World, Transition]:
        next_key, key = jax.random.split(world.key)
        state, reward, terminated = self._advance_one(world.state, action, key)
        reward = jnp.asarray(reward, jnp.float32)
        for alive in jax.tree.leaves(self.alive(world.state)):
            reward = jnp.where(alive, reward, 0.0)
        length, total = world.episode_length + 1, world.episode_return + jnp.mean(reward)
        truncated = (length >= self.max_steps) | self.cut_off(state)
        done = terminated | truncated
        after = self.observe(state), jax.tree.map(lambda alive: alive & ~terminated, self.alive(state))
        fresh = self.initial(key)
        state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, state)
        now = jax.tree.map(lambda new, old: jnp.where(done, new, old), (self.observe(fresh), self.alive(fresh)), after)
        finished = Finished(
            world.finished.episodes + done,
            world.finished.returns + jnp.where(done, total, 0.0),
            world.finished.lengths + jnp.where(done, length, 0),
        )
        reward, (next_observation, next_alive), (observation, alive) = self._seen((reward, after, now))
        transition = Transition(
            world.observation, action, reward, terminated, truncated, next_observation, world.alive, next_alive
        )
        length, total = jnp.where(done, 0, length), jnp.where(done, 0.0, total)
        return World(state, observation, next_key, length, total, finished, alive), transition
