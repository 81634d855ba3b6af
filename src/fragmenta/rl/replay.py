"""Replay: the latest steps of every environment, and batches drawn from them.

A ring per environment, with counters of its own, and a batch takes as many steps of each environment as of any other,
drawn with that environment's key. So a replica that holds some environments inserts and samples without the others, may
be ahead of them, and may start anew alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs import Transition
from fragmenta.rl.frames import Frames, add_frames, empty_frames, end_stacks, observations, single_frames
from fragmenta.rl.minibatches import put_steps, take_steps
from fragmenta.rl.priorities import Priorities, add_rows, draw_rows, no_priorities


class Replay(NamedTuple):
    """The latest steps; time and environments are the leading axes. Counters have an entry per environment."""

    steps: Transition
    """If observations are stored as frames, they are `Frames`, and `next_observation` is empty."""
    position: jax.Array
    """The row that is written next."""
    filled: jax.Array
    """How many rows hold steps."""
    inserted: jax.Array
    """How many steps there were, also those that were replaced since."""
    draws: jax.Array
    """How many of the iterations that inserted them also drew some to learn from."""
    priorities: Any = ()
    """`Priorities` of the rows; empty if all are drawn alike."""
    memory: Any = ()
    """What was remembered before each step, for algorithms with a memory of the episode."""

    @property
    def length(self) -> int:
        """Rows: the steps kept of every environment."""
        return self.steps.reward.shape[0]


class Batch(NamedTuple):
    """Steps to learn from; their order and the environments are the leading axes."""

    observation: Any
    action: jax.Array
    reward: jax.Array
    """The discounted sum over the steps until `next_observation`."""
    discount: jax.Array
    """What the value of `next_observation` is multiplied by: 0 where the episode terminated."""
    next_observation: Any
    weight: jax.Array
    """Importance weights, for steps that were not drawn alike."""
    rows: jax.Array
    """Where the steps are in the replay."""
    alive: Any = ()
    """For teams: which agents were active in the step."""
    next_alive: Any = ()
    """For teams: which agents are active with `next_observation`."""


def empty_replay(step: Transition, length: int, prioritized: bool = False, stack: int = 0) -> Replay:
    """A replay of `length` rows for steps like this one (arrays or shapes, one entry per environment).

    With a `stack`, observations are stacks of so many frames, which are stored once, and steps are inserted as
    `single_frames` returns them.
    """
    rest = step._replace(observation=(), next_observation=()) if stack else step
    steps = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), rest)
    if stack:
        latest = jax.eval_shape(lambda step: single_frames(step, stack).observation, step)
        steps = steps._replace(observation=empty_frames(latest.frame, stack, length))
    envs = step.reward.shape[0]
    zero = jnp.zeros(envs, jnp.int32)
    return Replay(steps, zero, zero, zero, zero, no_priorities(length, envs) if prioritized else ())


def insert_steps(replay: Replay, trajectory: Transition, n_step: int = 1, memory: Any = ()) -> Replay:
    """Replace the oldest rows by a trajectory, with what was remembered before each step.

    With priorities, a step gets the largest one of its environment as soon as the `n_step` steps from it on are there.
    """
    count = trajectory.reward.shape[0]

    # A scatter of at least two rows, because XLA makes a slice update of one row, repeats that wherever the result is
    # read, and then needs a copy of all rows.
    source = jnp.arange(max(count, 2)) % count
    written = (replay.position + source[:, None]) % replay.length

    priorities = replay.priorities
    if isinstance(priorities, Priorities):
        priorities = add_rows(priorities, replay.position, replay.filled, count, n_step - 1, replay.length)
    frames, rest = replay.steps.observation, replay.steps
    if isinstance(frames, Frames):
        rows = (replay.position + jnp.arange(count)[:, None]) % replay.length
        ended = trajectory.terminated | trajectory.truncated
        frames = add_frames(frames, rows, trajectory.observation, trajectory.next_observation, ended)
        rest, trajectory = (x._replace(observation=(), next_observation=()) for x in (rest, trajectory))
    new, remembered = jax.tree.map(lambda x: x[source], (trajectory, memory))
    steps = put_steps(rest, written, new)
    return Replay(
        steps._replace(observation=frames) if isinstance(frames, Frames) else steps,
        (replay.position + count) % replay.length,
        jnp.minimum(replay.filled + count, replay.length),
        replay.inserted + count,
        replay.draws,
        priorities,
        put_steps(replay.memory, written, remembered),
    )


def sample_steps(
    replay: Replay, keys: jax.Array, per_env: int, gamma: float, n_step: int = 1, importance: Any = 0.0
) -> Batch:
    """Draw `per_env` steps of every environment with its key, each with its return over `n_step` steps.

    Without priorities all steps are as likely. With them, a step is as likely as its priority is high, and `importance`
    is how far the weights make up for it: 1 is fully. Divide them by the largest of a batch, which only those who have
    the steps of all environments know.
    """
    rows, weight = draw_starts(replay, keys, per_env, n_step, importance)
    return _with_returns(replay, rows, gamma, n_step, weight)


def draw_starts(
    replay: Replay, keys: jax.Array, per_env: int, length: int, importance: Any = 0.0
) -> tuple[jax.Array, jax.Array]:
    """Draw `per_env` rows of every environment from which on `length` steps are there, and their weights.

    Where there is none yet, what is drawn must not be learned from.
    """
    available = jnp.maximum(replay.filled - (length - 1), 1)
    if isinstance(replay.priorities, Priorities):
        rows, likelihood = draw_rows(replay.priorities, keys, per_env)
        weight = (jnp.maximum(likelihood, 1e-12) * available) ** -importance
        return rows, weight
    draw = jax.vmap(lambda key, available: jax.random.randint(key, (per_env,), 0, available), out_axes=1)
    age = draw(keys, available) + length  # the newest row has age 1
    rows = (replay.position - age) % replay.length
    return rows, jnp.ones(rows.shape)


def _with_returns(replay: Replay, rows: jax.Array, gamma: float, n_step: int, weight: jax.Array) -> Batch:
    steps = replay.steps
    action, alive = take_steps((steps.action, steps.alive), rows)
    if n_step == 1:
        reward, terminated, next_alive = take_steps((steps.reward, steps.terminated, steps.next_alive), rows)
        observation, next_observation, weight = _observations(replay, rows, rows, weight)
        discount = gamma * (1.0 - terminated)
        return Batch(observation, action, reward, discount, next_observation, weight, rows, alive, next_alive)
    span = (rows + jnp.arange(n_step)[:, None, None]) % replay.length
    flat = span.reshape(-1, rows.shape[1])
    reward, terminated, truncated = (
        x.reshape(*span.shape, *x.shape[2:])
        for x in take_steps((steps.reward, steps.terminated, steps.truncated), flat)
    )
    goes_on = 1.0 - (terminated | truncated)[:-1]
    runs = jnp.concatenate([jnp.ones(span[:1].shape), jnp.cumprod(goes_on, axis=0)])
    power = gamma ** jnp.arange(n_step)[:, None, None]
    last = jnp.sum(runs, axis=0).astype(jnp.int32) - 1
    end = (rows + last) % replay.length
    observation, next_observation, weight = _observations(replay, rows, end, weight)
    terminated, next_alive = take_steps((steps.terminated, steps.next_alive), end)
    discount = gamma ** (last + 1) * (1.0 - terminated)
    counted = (power * runs).reshape(*span.shape, *[1] * (reward.ndim - span.ndim))
    total = jnp.sum(counted * reward, axis=0)
    return Batch(observation, action, total, discount, next_observation, weight, rows, alive, next_alive)


def _observations(replay: Replay, rows: jax.Array, end: jax.Array, weight: jax.Array) -> tuple[Any, Any, jax.Array]:
    """The observations of these rows, those that follow the rows `end`, and the weights: 0 if the latter are gone."""
    observation, following, is_gone = observations_at(replay, end)
    if end is not rows:
        observation = observations_at(replay, rows)[0]
    return observation, following, jnp.where(is_gone, 0.0, weight)


def observations_at(replay: Replay, rows: jax.Array) -> tuple[Any, Any, jax.Array]:
    """The observations of the steps in these rows, those that follow them, and whether the latter matter but are
    gone."""
    steps, frames = replay.steps, replay.steps.observation
    if not isinstance(frames, Frames):
        return *take_steps((steps.observation, steps.next_observation), rows), jnp.zeros(rows.shape, bool)
    terminated, truncated = take_steps((steps.terminated, steps.truncated), rows)
    observation, following, is_gone = observations(frames, replay.position, rows, terminated | truncated)
    return observation, following, is_gone & ~terminated


def end_episodes(replay: Replay) -> Replay:
    """Mark the newest steps as truncated: the environments start new episodes after them."""
    newest = ((replay.position - 1) % replay.length)[None]
    steps = replay.steps
    terminated, truncated = take_steps((steps.terminated, steps.truncated), newest)
    cut = put_steps(steps.truncated, newest, ~terminated)
    if isinstance(steps.observation, Frames):
        steps = steps._replace(observation=end_stacks(steps.observation, newest, ~(terminated | truncated)))
    return replay._replace(steps=steps._replace(truncated=cut))
