"""Small networks that several loops share."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class ActorCriticNetwork(nn.Module):
    """Action logits and a value, with separate bodies."""

    actions: int
    hidden: int = 16

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        orthogonal = nn.initializers.orthogonal
        body = nn.tanh(nn.Dense(self.hidden, kernel_init=orthogonal(1.4))(observation))
        logits = nn.Dense(self.actions, kernel_init=orthogonal(0.1))(body)
        body = nn.tanh(nn.Dense(self.hidden, kernel_init=orthogonal(1.4))(observation))
        value = nn.Dense(1, kernel_init=orthogonal(1.0))(body)
        return logits, value.squeeze(-1)


def init_mlp(key: jax.Array, *sizes: int) -> list[dict[str, jax.Array]]:
    """The parameters of dense layers as a plain list of dictionaries."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) / jnp.sqrt(m), "b": jnp.zeros(n)}
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def mlp(params: Any, x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def log_prob_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    """The log-probability of the action taken, per row."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1).squeeze(-1)
