"""Explore with random actions."""

import jax
import jax.numpy as jnp

from fragmenta.rl.masks import masked_logits


def epsilon_greedy(
    keys: jax.Array, best: jax.Array, epsilon: jax.Array, actions: int, mask: jax.Array | None = None
) -> jax.Array:
    """The best action of every environment or, with its probability epsilon, a random legal one; a key for each."""

    def explore(key: jax.Array, best: jax.Array, epsilon: jax.Array, mask: jax.Array | None) -> jax.Array:
        is_random, choice = jax.random.split(key)
        if mask is None:
            random = jax.random.randint(choice, (), 0, actions)
        else:
            random = jax.random.categorical(choice, masked_logits(jnp.zeros(actions), mask)).astype(jnp.int32)
        return jnp.where(jax.random.uniform(is_random) < epsilon, random, best)

    return jax.vmap(explore)(keys, best, epsilon, mask)


def decayed(first: float, last: float, done: jax.Array, steps: float) -> jax.Array:
    """A value that falls linearly from `first` to `last` within that many steps, of which `done` are done."""
    return first + (last - first) * jnp.minimum(done / (steps + 1.0), 1.0)
