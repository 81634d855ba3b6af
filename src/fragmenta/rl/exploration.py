"""Explore with random actions."""

import jax
import jax.numpy as jnp

from fragmenta.rl.masks import masked_logits


def epsilon_greedy(keys: jax.Array, values: jax.Array, epsilon: jax.Array, legal: jax.Array | None) -> jax.Array:
    """The action of the highest value in every environment or, with its probability epsilon, a random one, of those
    that are legal if that is known; a key for each."""
    values = masked_logits(values, legal)

    def explore(key: jax.Array, values: jax.Array, epsilon: jax.Array, legal: jax.Array | None) -> jax.Array:
        coin, share = jax.random.uniform(key, (2,))  # one draw for both: acting is mostly the drawing of numbers
        best = jnp.argmax(values, axis=-1)
        return jnp.where(coin < epsilon, _at_share(share, values.shape[-1], legal), best).astype(jnp.int32)

    return jax.vmap(explore)(keys, values, epsilon, legal)


def _at_share(share: jax.Array, actions: int, legal: jax.Array | None) -> jax.Array:
    """The action that lies at this share, of 0 to 1, of all (legal) actions in a row; the first if none is legal."""
    counts = jnp.arange(1, actions + 1) if legal is None else jnp.cumsum(legal > 0, dtype=jnp.int32)
    return jnp.argmax(counts > jnp.minimum(jnp.floor(share * counts[-1]), counts[-1] - 1))


def decayed(first: float, last: float, done: jax.Array, steps: float) -> jax.Array:
    """A value that falls linearly from `first` to `last` within that many steps, of which `done` are done."""
    return first + (last - first) * jnp.minimum(done / (steps + 1.0), 1.0)
