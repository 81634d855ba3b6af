"""Losses for values of actions: categorical (C51) and quantile (QR) distributions."""

import jax
import jax.numpy as jnp


def huber(error: jax.Array) -> jax.Array:
    """Quadratic up to 1, linear beyond."""
    size = jnp.abs(error)
    return jnp.where(size <= 1.0, 0.5 * error**2, size - 0.5)


def project_categorical(support: jax.Array, probability: jax.Array, shifted: jax.Array) -> jax.Array:
    """Probabilities on the atoms of an evenly spaced `support`, of a distribution on the atoms `shifted` instead.

    The atoms are the last axis (Bellemare et al., 2017).
    """
    spacing = support[1] - support[0]
    shifted = jnp.clip(shifted, support[0], support[-1])
    share = jnp.clip(1.0 - jnp.abs(shifted[..., None, :] - support[:, None]) / spacing, 0.0, 1.0)
    return jnp.sum(share * probability[..., None, :], axis=-1)


def quantile_huber(quantiles: jax.Array, targets: jax.Array) -> jax.Array:
    """The loss of quantiles against samples of the target distribution, both on the last axis (Dabney et al., 2018)."""
    count = quantiles.shape[-1]
    fractions = (jnp.arange(count) + 0.5) / count
    error = targets[..., None, :] - quantiles[..., :, None]
    weight = jnp.abs(fractions[:, None] - (error < 0.0))
    return jnp.sum(jnp.mean(weight * huber(error), axis=-1), axis=-1)
