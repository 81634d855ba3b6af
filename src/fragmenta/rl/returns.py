"""Advantages, V-trace, the values of next states, and how well values fit their targets."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.envs import Transition


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


def returns_to_go(trajectory: Transition, gamma: float) -> tuple[jax.Array, jax.Array]:
    """The discounted sum of rewards from every step to the end of its episode, and whether the trajectory has it."""
    done = trajectory.terminated | trajectory.truncated

    def backwards(carry: tuple[jax.Array, jax.Array], x: tuple[jax.Array, jax.Array]) -> tuple[Any, Any]:
        (total, ends), (reward, done) = carry, x
        carry = reward + gamma * jnp.where(done, 0.0, total), done | ends
        return carry, carry

    start = jnp.zeros_like(trajectory.reward[0]), jnp.zeros_like(done[0])
    return jax.lax.scan(backwards, start, (trajectory.reward, done), reverse=True, unroll=16)[1]


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

    `log_ratio` is the log-probability of each action under the learning policy minus that under the acting policy.
    `next_value` is the value of the observation before any reset, so a truncated step still bootstraps.
    """
    ratio = jnp.exp(log_ratio)
    rho, c = jnp.minimum(ratio, clip_rho), jnp.minimum(ratio, clip_c)
    discount = gamma * (1.0 - trajectory.terminated)
    not_done = 1.0 - (trajectory.terminated | trajectory.truncated)
    delta = rho * (trajectory.reward + discount * next_value - value)

    def backwards(error: jax.Array, x: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        delta, c, not_done = x
        next_error = not_done * error  # the correction of the next step, if it is in the same episode
        error = delta + gamma * decay * c * next_error
        return error, (error, next_error)

    start = jnp.zeros_like(delta[0])
    _, (error, next_error) = jax.lax.scan(backwards, start, (delta, c, not_done), reverse=True, unroll=16)
    advantage = rho * (trajectory.reward + discount * (next_value + next_error) - value)
    return value + error, advantage


class ValueFit(NamedTuple):
    """How well values fit their targets, as means over steps: of the weights, the targets, the errors, and the squares
    of both. Averaging several of them gives the fit over all of their steps."""

    weight: jax.Array
    target: jax.Array
    target_square: jax.Array
    error: jax.Array
    error_square: jax.Array


def value_fit(target: jax.Array, error: jax.Array, counts: jax.Array | None = None) -> ValueFit:
    """The fit of values with these targets and errors, over the steps where `counts` is true; by default all."""
    weights = jnp.ones_like(target) if counts is None else counts.astype(target.dtype)

    def weighted(x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.where(weights > 0, x, 0.0))

    return ValueFit(jnp.mean(weights), weighted(target), weighted(target**2), weighted(error), weighted(error**2))


def explained_variance(fit: ValueFit) -> jax.Array:
    """The share of the targets' variance that the values explain: 1 is perfect, 0 is no better than a constant.

    It is 0 where targets barely vary: by less than three thousandths of their magnitude.
    """
    weight = jnp.maximum(fit.weight, 1e-8)

    def variance(mean: jax.Array, square: jax.Array) -> jax.Array:
        return jnp.maximum(square / weight - (mean / weight) ** 2, 0.0)

    target_variance, error_variance = variance(fit.target, fit.target_square), variance(fit.error, fit.error_square)
    # Below this, the variance is rounding error.
    varies = target_variance > 1e-5 * fit.target_square / weight
    return jnp.where(varies, 1.0 - error_variance / jnp.where(varies, target_variance, 1.0), 0.0)


def next_values(
    value_of: Callable[[Any], jax.Array], value: jax.Array, trajectory: Transition, max_steps: int
) -> jax.Array:
    """The value after every step that did not terminate the episode, before any reset.

    That is the next step's value, except for the last step and truncated episodes. An environment that truncates after
    `max_steps` does so rarely, so the value network evaluates only those next observations, not all.
    """
    next_observation, truncated, horizon = trajectory.next_observation, trajectory.truncated, value.shape[0]
    cuts = 1 + (horizon - 1) // max_steps
    if cuts > 4:
        return value_of(next_observation)
    next_value = jnp.concatenate([value[1:], value_of(jax.tree.map(lambda x: x[-1:], next_observation))])
    for _ in range(cuts):
        first = jnp.argmax(truncated, axis=0)[None]
        cut_value = value_of(jax.tree.map(partial(_at, first), next_observation))
        here = truncated & (jnp.arange(horizon)[:, None] == first)
        next_value = jnp.where(here, cut_value, next_value)
        truncated = truncated & ~here
    return next_value


def _at(step: jax.Array, x: jax.Array) -> jax.Array:
    """For every environment, the row of its own step."""
    return jnp.take_along_axis(x, step.reshape(step.shape + (1,) * (x.ndim - 2)), axis=0)


def normalize_advantage(advantage: jax.Array) -> jax.Array:
    """Advantages with mean 0 and standard deviation 1 over all of them."""
    mean, square = jnp.mean(advantage), jnp.mean(advantage**2)
    return (advantage - mean) / (jnp.sqrt(jnp.maximum(square - mean**2, 0.0)) + 1e-8)
