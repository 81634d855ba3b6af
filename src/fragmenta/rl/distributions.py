"""Action distributions: categorical, multi-categorical, and normal."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.rl.keys import fold_each


class Categorical(NamedTuple):
    """A distribution over integers, with unnormalised log-probabilities in the last axis."""

    logits: jax.Array

    def mode(self) -> jax.Array:
        """The most likely integer."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def sample(self, keys: jax.Array) -> jax.Array:
        """One sample per leading index, each with its own key."""
        return jax.vmap(jax.random.categorical)(keys, self.logits)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """The log-probability of each action."""
        one_hot = jax.nn.one_hot(action, self.logits.shape[-1], dtype=self.logits.dtype)
        return jnp.sum(jax.nn.log_softmax(self.logits) * one_hot, axis=-1)

    def entropy(self) -> jax.Array:
        """The entropy in nats."""
        log_p = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)


class MultiCategorical(NamedTuple):
    """Several integers, each from its own distribution; they are the last axis of an action."""

    parts: tuple[Categorical, ...]

    def mode(self) -> jax.Array:
        """The most likely integers."""
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def sample(self, keys: jax.Array) -> jax.Array:
        """One sample of all integers per leading index, each with its own key."""
        return jnp.stack([part.sample(fold_each(keys, i)) for i, part in enumerate(self.parts)], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """The log-probability of each action."""
        return sum(part.log_prob(action[..., i]) for i, part in enumerate(self.parts))  # pyright: ignore

    def entropy(self) -> jax.Array:
        """The entropy in nats."""
        return sum(part.entropy() for part in self.parts)  # pyright: ignore


class Normal(NamedTuple):
    """Independent normal distributions over the last axes, as many axes as `log_std` has."""

    mean: jax.Array
    log_std: jax.Array

    def mode(self) -> jax.Array:
        """The most likely values, which are the means."""
        return self.mean

    def sample(self, keys: jax.Array) -> jax.Array:
        """One sample per leading index, each with its own key."""
        noise = jax.vmap(lambda key: jax.random.normal(key, self.mean.shape[1:]))(keys)
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: jax.Array) -> jax.Array:
        """The log-density of each action."""
        scaled = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * scaled**2 - self.log_std - 0.5 * jnp.log(2 * jnp.pi), axis=self._axes)

    def entropy(self) -> jax.Array:
        """The entropy in nats."""
        per_dimension = 0.5 * (1 + jnp.log(2 * jnp.pi)) + self.log_std
        return jnp.sum(jnp.broadcast_to(per_dimension, self.mean.shape), axis=self._axes)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(-self.log_std.ndim, 0))


class RowNormal(Normal):
    """Normal distributions over the last axis alone, whose deviations may differ between the rows."""

    @property
    def _axes(self) -> tuple[int, ...]:
        return (-1,)
