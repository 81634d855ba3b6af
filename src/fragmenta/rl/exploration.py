"""Explore with random actions."""

import jax
import jax.numpy as jnp

from fragmenta.rl.masks import masked_logits


def epsilon_greedy(keys: jax.Array, values: jax.Array, epsilon: jax.Array, legal: jax.Array | None) -> jax.Array:
    """The action of the highest value in every environment or, with its probability epsilon, a random one, of those
    that are legal if that is known; a key for each."""
    values = masked_logits(values, legal)

    def explore(key: jax.Array, values: jax.Array, epsilon: jax.Array, legal: jax.Array | None) -> jax.Array:
        is_random, choice = jax.random.split(key)
        actions = values.shape[-1]
        if legal is None:
            random = jax.random.randint(choice, (), 0, actions)
        else:
            random = jax.random.categorical(choice, masked_logits(jnp.zeros(actions), legal))
        best = jnp.argmax(values, axis=-1)
        return jnp.where(jax.random.uniform(is_random) < epsilon, random, best).astype(jnp.int32)

    return jax.vmap(explore)(keys, values, epsilon, legal)


def decayed(first: float, last: float, done: jax.Array, steps: float) -> jax.Array:
    """A value that falls linearly from `first` to `last` within that many steps, of which `done` are done."""
    return first + (last - first) * jnp.minimum(done / (steps + 1.0), 1.0)
