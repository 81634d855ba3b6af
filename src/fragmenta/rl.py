"""Pieces of mathematics that algorithms share: action distributions, advantages, keys per environment."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs import Transition


class Categorical(NamedTuple):
    """A distribution over integers, by unnormalised log-probabilities in the last axis."""

    logits: jax.Array

    def mode(self) -> jax.Array:
        """The likeliest integer."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def sample(self, keys: jax.Array) -> jax.Array:
        """One draw per leading index, each with its own key."""
        return jax.vmap(jax.random.categorical)(keys, self.logits)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """The log-probability of each action."""
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=self.logits.dtype)
        return jnp.sum(jax.nn.log_softmax(self.logits) * chosen, axis=-1)

    def entropy(self) -> jax.Array:
        """The entropy in nats."""
        log_p = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)


class MultiCategorical(NamedTuple):
    """Several integers at once, each from a distribution of its own; an action has them in its last axis."""

    parts: tuple[Categorical, ...]

    def mode(self) -> jax.Array:
        """The likeliest integers."""
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def sample(self, keys: jax.Array) -> jax.Array:
        """One draw of all integers per leading index, each with its own key."""
        return jnp.stack([part.sample(fold_each(keys, i)) for i, part in enumerate(self.parts)], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """The log-probability of each action."""
        return sum(part.log_prob(action[..., i]) for i, part in enumerate(self.parts))  # pyright: ignore

    def entropy(self) -> jax.Array:
        """The entropy in nats."""
        return sum(part.entropy() for part in self.parts)  # pyright: ignore


class Normal(NamedTuple):
    """Independent normal distributions over the last axes, as many as the deviation has."""

    mean: jax.Array
    log_std: jax.Array

    def mode(self) -> jax.Array:
        """The likeliest numbers, which are the means."""
        return self.mean

    def sample(self, keys: jax.Array) -> jax.Array:
        """One draw per leading index, each with its own key."""
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


def generalized_advantage(
    trajectory: Transition, value: jax.Array, next_value: jax.Array, gamma: float, gae_lambda: float
) -> jax.Array:
    """Generalised advantage estimates over the leading (time) axis.

    `next_value` is the value of the observation before any reset, so a truncated step still bootstraps.
    """
    delta = trajectory.reward + gamma * next_value * (1.0 - trajectory.terminated) - value
    done = trajectory.terminated | trajectory.truncated
    decay = gamma * gae_lambda * (1.0 - done)

    def backwards(carry: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, decay = x
        carry = delta + decay * carry
        return carry, carry

    _, advantage = jax.lax.scan(backwards, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=16)
    return advantage


def v_trace(
    trajectory: Transition,
    value: jax.Array,
    next_value: jax.Array,
    log_ratio: jax.Array,
    gamma: float,
    decay: float,
    clip_rho: float,
    clip_c: float,
) -> tuple[jax.Array, jax.Array]:
    """V-trace value targets and policy advantages over the leading (time) axis (Espeholt et al., 2018).

    `log_ratio` is the log-probability of each action under the policy that learns minus that under the one that acted.
    `next_value` is the value of the observation before any reset, so a truncated step still bootstraps.
    """
    ratio = jnp.exp(log_ratio)
    rho, c = jnp.minimum(ratio, clip_rho), jnp.minimum(ratio, clip_c)
    discount = gamma * (1.0 - trajectory.terminated)
    goes_on = 1.0 - (trajectory.terminated | trajectory.truncated)
    delta = rho * (trajectory.reward + discount * next_value - value)

    def backwards(error: jax.Array, x: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        delta, c, goes_on = x
        after = goes_on * error  # the correction of the following step, if it is of the same episode
        error = delta + gamma * decay * c * after
        return error, (error, after)

    start = jnp.zeros_like(delta[0])
    _, (error, after) = jax.lax.scan(backwards, start, (delta, c, goes_on), reverse=True, unroll=16)
    advantage = rho * (trajectory.reward + discount * (next_value + after) - value)
    return value + error, advantage


class ValueFit(NamedTuple):
    """How values fit their targets over some steps, as means over all steps: of what counts, of the targets, of what
    values miss them by, and of the squares of both. Means of such means say how they fit over more steps."""

    weight: jax.Array
    target: jax.Array
    target_square: jax.Array
    error: jax.Array
    error_square: jax.Array


def value_fit(target: jax.Array, error: jax.Array, counts: jax.Array | None = None) -> ValueFit:
    """How values fit their targets, by the targets and what the values miss them by, over the steps that count; all
    of them by default."""
    weights = jnp.ones_like(target) if counts is None else counts.astype(target.dtype)

    def weighted(x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.where(weights > 0, x, 0.0))

    return ValueFit(jnp.mean(weights), weighted(target), weighted(target**2), weighted(error), weighted(error**2))


def explained_variance(fit: ValueFit) -> jax.Array:
    """The share of the targets' variance that the values explain: 1 is perfect, 0 is no better than a constant.

    It is 0 where targets hardly vary: by less than three thousandths of their size.
    """
    weight = jnp.maximum(fit.weight, 1e-8)

    def variance(mean: jax.Array, square: jax.Array) -> jax.Array:
        return jnp.maximum(square / weight - (mean / weight) ** 2, 0.0)

    wanted, missed = variance(fit.target, fit.target_square), variance(fit.error, fit.error_square)
    # Below that, what is left is rounding.
    varies = wanted > 1e-5 * fit.target_square / weight
    return jnp.where(varies, 1.0 - missed / jnp.where(varies, wanted, 1.0), 0.0)


def next_values(
    value_of: Callable[[Any], jax.Array], value: jax.Array, trajectory: Transition, max_steps: int
) -> jax.Array:
    """The value after every step, before any reset, where the episode did not terminate.

    That is the next step's value, but for the last step and where an episode was cut off. An environment that cuts
    off after `max_steps` does so rarely, so only those steps' next observations are valued, not all.
    """
    next_observation, truncated, horizon = trajectory.next_observation, trajectory.truncated, value.shape[0]
    cuts = 1 + (horizon - 1) // max_steps
    if cuts > 4:
        return value_of(next_observation)
    following = jnp.concatenate([value[1:], value_of(jax.tree.map(lambda x: x[-1:], next_observation))])
    for _ in range(cuts):
        first = jnp.argmax(truncated, axis=0)[None]
        cut_off = value_of(jax.tree.map(partial(_at, first), next_observation))
        here = truncated & (jnp.arange(horizon)[:, None] == first)
        following = jnp.where(here, cut_off, following)
        truncated = truncated & ~here
    return following


def _at(step: jax.Array, x: jax.Array) -> jax.Array:
    """Of every environment the row of its own step."""
    return jnp.take_along_axis(x, step.reshape(step.shape + (1,) * (x.ndim - 2)), axis=0)


def permutation(key: jax.Array, length: int) -> jax.Array:
    """A random order of 0 to length - 1.

    Sorts one array of random numbers that carry their index in the low bits, which on a CPU takes a quarter of the
    time of sorting pairs as `jax.random.permutation` does.
    """
    index_bits = max(1, (length - 1).bit_length())
    index_mask = jnp.uint32(2**index_bits - 1)
    numbered = (jax.random.bits(key, (length,)) & ~index_mask) | jnp.arange(length, dtype=jnp.uint32)
    return (jnp.sort(numbered) & index_mask).astype(jnp.int32)


def steps_of_minibatches(keys: jax.Array, horizon: int, minibatches: int) -> jax.Array:
    """Permute each environment's steps by its own key: for each minibatch, a slice of every environment's."""
    order = jax.vmap(lambda key: permutation(key, horizon), out_axes=1)(keys)
    return order.reshape(minibatches, -1, keys.shape[0])


def steps_of_chunks(keys: jax.Array, horizon: int, minibatches: int) -> jax.Array:
    """Cut each environment's steps into chunks, permuted by its own key: for each minibatch one of every environment's,
    its steps in order."""
    length = horizon // minibatches
    order = jax.vmap(lambda key: permutation(key, minibatches), out_axes=1)(keys)
    return order[:, None] * length + jnp.arange(length)[:, None]


def take_steps(trajectory: Any, steps: jax.Array) -> Any:
    """Of every environment the steps that its column of `steps` names; time and environments are in front."""

    def take(x: jax.Array) -> jax.Array:
        index = steps.reshape(*steps.shape, *[1] * (x.ndim - 2))
        return jnp.take_along_axis(x, index, axis=0, mode="promise_in_bounds")

    return jax.tree.map(take, trajectory)


def split_each(keys: jax.Array, num: int = 2) -> tuple[jax.Array, ...]:
    """Split every key of a batch into `num`; entry i of each result belongs to key i."""
    split = jax.vmap(lambda key: jax.random.split(key, num))(keys)
    return tuple(split[:, i] for i in range(num))


def fold_each(keys: jax.Array, data: jax.Array | int) -> jax.Array:
    """Fold one number into every key of a batch."""
    return jax.vmap(lambda key: jax.random.fold_in(key, data))(keys)


def keys_by_index(key: jax.Array, count: int) -> jax.Array:
    """A key per environment, from its global index alone, so that no split of the environments changes it."""
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(jnp.arange(count))
