"""Minibatches with some steps of every environment, each with its own permutation."""

from typing import Any

import jax
import jax.numpy as jnp


def permutation(key: jax.Array, length: int) -> jax.Array:
    """A random permutation of 0 to length - 1.

    Sorts one array of random numbers that carry their index in the low bits, which on a CPU takes a quarter of the
    time of sorting pairs as `jax.random.permutation` does.
    """
    index_bits = max(1, (length - 1).bit_length())
    index_mask = jnp.uint32(2**index_bits - 1)
    numbered = (jax.random.bits(key, (length,)) & ~index_mask) | jnp.arange(length, dtype=jnp.uint32)
    return (jnp.sort(numbered) & index_mask).astype(jnp.int32)


def steps_of_minibatches(keys: jax.Array, horizon: int, minibatches: int) -> jax.Array:
    """Permute each environment's steps with its own key; every minibatch gets a slice of every environment's steps."""
    order = jax.vmap(lambda key: permutation(key, horizon), out_axes=1)(keys)
    return order.reshape(minibatches, -1, keys.shape[0])


def steps_of_chunks(keys: jax.Array, horizon: int, minibatches: int) -> jax.Array:
    """Cut each environment's steps into chunks, permuted with its own key; every minibatch gets one chunk per
    environment, with its steps in order."""
    length = horizon // minibatches
    order = jax.vmap(lambda key: permutation(key, minibatches), out_axes=1)(keys)
    return order[:, None] * length + jnp.arange(length)[:, None]


def take_steps(trajectory: Any, steps: jax.Array) -> Any:
    """The steps in each environment's column of `steps`; time and environments are the leading axes."""

    def take(x: jax.Array) -> jax.Array:
        index = steps.reshape(*steps.shape, *[1] * (x.ndim - 2))
        return jnp.take_along_axis(x, index, axis=0, mode="promise_in_bounds")

    return jax.tree.map(take, trajectory)


def put_steps(trajectory: Any, steps: jax.Array, new: Any) -> Any:
    """The trajectory with `new` as the steps in each environment's column of `steps`: what `take_steps` then reads."""

    def put(x: jax.Array, new: jax.Array) -> jax.Array:
        columns = jnp.arange(steps.shape[1])
        return x.at[steps, columns].set(new.astype(x.dtype), mode="promise_in_bounds")

    return jax.tree.map(put, trajectory, new)
