"""What steps were worth: advantages, V-trace, the values of next states, and how well values fit their targets."""

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
