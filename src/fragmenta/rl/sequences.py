"""Sequences of consecutive steps from a replay, for algorithms with a memory."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs import Transition
from fragmenta.rl.minibatches import take_steps
from fragmenta.rl.replay import Replay, draw_starts, observations_at


class Sequences(NamedTuple):
    """Sequences to learn from; their order and the environments are the leading axes, of the steps after time."""

    steps: Transition
    weight: jax.Array
    """Importance weights, for sequences that were not drawn alike."""
    rows: jax.Array
    """Where each of them starts in the replay."""
    memory: Any = ()
    """What was remembered before the first step of each."""


def sample_sequences(
    replay: Replay, keys: jax.Array, per_env: int, length: int, importance: jax.Array | float = 0.0
) -> Sequences:
    """Draw `per_env` sequences of every environment with its key; they may reach over the end of an episode."""
    rows, weight = draw_starts(replay, keys, per_env, length, importance)
    span = (rows + jnp.arange(length)[:, None, None]) % replay.length
    flat = span.reshape(-1, rows.shape[1])
    observation, following, is_gone = observations_at(replay, flat)
    rest = take_steps(replay.steps._replace(observation=(), next_observation=()), flat)
    steps = rest._replace(observation=observation, next_observation=following)
    steps, is_gone = jax.tree.map(lambda x: x.reshape(*span.shape, *x.shape[2:]), (steps, is_gone))
    weight = jnp.where(jnp.any(is_gone, axis=0), 0.0, weight)
    return Sequences(steps, weight, rows, take_steps(replay.memory, rows))
