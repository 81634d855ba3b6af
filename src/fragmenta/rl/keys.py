"""One random key per environment."""

import jax
import jax.numpy as jnp


def split_each(keys: jax.Array, num: int = 2) -> tuple[jax.Array, ...]:
    """Split every key of a batch into `num`; entry i of each result belongs to key i."""
    split = jax.vmap(lambda key: jax.random.split(key, num))(keys)
    return tuple(split[:, i] for i in range(num))


def fold_each(keys: jax.Array, data: jax.Array | int) -> jax.Array:
    """Fold one number into every key of a batch."""
    return jax.vmap(lambda key: jax.random.fold_in(key, data))(keys)


def keys_by_index(key: jax.Array, count: int) -> jax.Array:
    """One key per environment, derived from its global index only, so that it does not depend on the replicas."""
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(count))
