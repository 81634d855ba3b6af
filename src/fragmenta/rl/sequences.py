"""Sequences of consecutive steps from a replay, for algorithms with a memory."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs import Transition
from fragmenta.rl.minibatches import take_steps
from fragmenta.rl.replay import Replay, draw_starts


class Sequences(NamedTuple):
    """Sequences to learn from; their order and the environments are the leading axes, of the steps after time."""

    steps: Transition
    weight: jax.Array
    """Importance weights, for sequences that were not drawn alike."""
    rows: jax.Array
    """Where each of them starts in the replay."""


def sample_sequences(
    replay: Replay, keys: jax.Array, per_env: int, length: int, importance: jax.Array | float = 0.0
) -> Sequences:
    """Draw `per_env` sequences of every environment with its key; they may reach over the end of an episode."""
    rows, weight = draw_starts(replay, keys, per_env, length, importance)
    span = (rows + jnp.arange(length)[:, None, None]) % replay.length
    flat = take_steps(replay.steps, span.reshape(-1, rows.shape[1]))
    steps = jax.tree.map(lambda x: x.reshape(*span.shape, *x.shape[2:]), flat)
    return Sequences(steps, weight, rows)
