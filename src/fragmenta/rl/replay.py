"""Replay: the latest steps of every environment, and batches drawn from them.

A ring per environment, all at the same position: inserting is one slice for all of them, and a batch takes as many
steps of each environment as of any other, drawn with that environment's key. So a replica that holds some environments
inserts and samples without the others.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs import Transition
from fragmenta.rl.minibatches import take_steps
from fragmenta.rl.priorities import Priorities, add_rows, draw_rows, no_priorities


class Replay(NamedTuple):
    """The latest steps; time and environments are the leading axes."""

    steps: Transition
    position: jax.Array
    """The row that is written next."""
    filled: jax.Array
    """How many rows hold steps."""
    priorities: Any = ()
    """`Priorities` of the rows; empty if all are drawn alike."""

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


def empty_replay(step: Transition, length: int, prioritized: bool = False) -> Replay:
    """A replay of `length` rows for steps like this one (arrays or shapes, one entry per environment)."""
    steps = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), step)
    zero = jnp.zeros((), jnp.int32)
    return Replay(steps, zero, zero, no_priorities(length, step.reward.shape[0]) if prioritized else ())


def insert_steps(replay: Replay, trajectory: Transition, n_step: int = 1) -> Replay:
    """Replace the oldest rows by a trajectory.

    With priorities, a step gets the largest one of its environment as soon as the `n_step` steps from it on are there.
    """
    count = trajectory.reward.shape[0]

    # A scatter of at least two rows, because XLA makes a slice update of one row, repeats that wherever the result is
    # read, and then needs a copy of all rows.
    source = jnp.arange(max(count, 2)) % count
    written = (replay.position + source) % replay.length

    def write(rows: jax.Array, new: jax.Array) -> jax.Array:
        return rows.at[written].set(new[source].astype(rows.dtype), mode="promise_in_bounds")

    priorities = replay.priorities
    if isinstance(priorities, Priorities):
        priorities = add_rows(priorities, replay.position, count, n_step - 1, replay.length)
    return Replay(
        jax.tree.map(write, replay.steps, trajectory),
        (replay.position + count) % replay.length,
        jnp.minimum(replay.filled + count, replay.length),
        priorities,
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
    """Draw `per_env` rows of every environment from which on `length` steps are there, and their weights."""
    available = jnp.maximum(replay.filled - (length - 1), 1)
    if isinstance(replay.priorities, Priorities):
        rows, likelihood = draw_rows(replay.priorities, keys, per_env)
        weight = (jnp.maximum(likelihood, 1e-12) * available) ** -importance
        return rows, weight
    draw = jax.vmap(lambda key: jax.random.randint(key, (per_env,), 0, available), out_axes=1)
    age = draw(keys) + length  # the newest row has age 1
    rows = (replay.position - age) % replay.length
    return rows, jnp.ones(rows.shape)


def _with_returns(replay: Replay, rows: jax.Array, gamma: float, n_step: int, weight: jax.Array) -> Batch:
    steps = replay.steps
    observation, action, alive = take_steps((steps.observation, steps.action, steps.alive), rows)
    after = steps.next_observation, steps.terminated, steps.next_alive
    if n_step == 1:
        next_observation, terminated, next_alive = take_steps(after, rows)
        reward, discount = take_steps(steps.reward, rows), gamma * (1.0 - terminated)
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
    next_observation, terminated, next_alive = take_steps(after, (rows + last) % replay.length)
    discount = gamma ** (last + 1) * (1.0 - terminated)
    counted = (power * runs).reshape(*span.shape, *[1] * (reward.ndim - span.ndim))
    total = jnp.sum(counted * reward, axis=0)
    return Batch(observation, action, total, discount, next_observation, weight, rows, alive, next_alive)


def end_episodes(replay: Replay) -> Replay:
    """Mark the newest steps as truncated: the environments start new episodes after them."""
    newest = (replay.position - 1) % replay.length
    steps = replay.steps
    cut = steps.truncated.at[newest].set(~steps.terminated[newest] | steps.truncated[newest])
    return replay._replace(steps=steps._replace(truncated=cut))
