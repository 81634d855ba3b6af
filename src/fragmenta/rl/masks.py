"""Masks of legal actions."""

import jax
import jax.numpy as jnp


def masked_logits(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    """The logits with those of illegal actions so low that they are never drawn; unchanged without a mask."""
    return logits if mask is None else jnp.where(mask > 0, logits, -1e9)
