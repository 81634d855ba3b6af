"""Legal actions: an observation says which they are, in a part `action_mask` of its dictionary."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.envs import Box, Dict, Discrete, MultiDiscrete, Space
from fragmenta.errors import ConfigError
from fragmenta_core.spaces import MASK

NEVER = -1e9
"""The logit of an illegal action: finite, so that nothing becomes NaN, and too low to be drawn."""


def masked_logits(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    """The logits, or values, with those of illegal actions so low that they are never drawn; if no action is legal, as
    after the end of an episode, they stay as they are."""
    if mask is None:
        return logits
    is_legal = mask > 0
    is_legal |= ~jnp.any(is_legal, axis=-1, keepdims=True)
    return jnp.where(is_legal, logits, jnp.asarray(NEVER, logits.dtype))


def legal_actions(space: Space, action_space: Space, observation: Any) -> jax.Array | None:
    """Which actions are legal, one entry per logit on the last axis; None if observations do not say."""
    part = mask_part(space, action_space)
    if part is None:
        return None
    mask = observation[MASK]
    return mask.reshape(*mask.shape[: mask.ndim - len(part.shape)], math.prod(part.shape))


def mask_part(space: Space, action_space: Space) -> Box | None:
    """The part of the observations that says which actions are legal, if there is one; ConfigError if it does not fit
    the actions."""
    part = dict(space.spaces).get(MASK) if isinstance(space, Dict) else None
    if part is None or not isinstance(action_space, Discrete | MultiDiscrete):
        return None
    actions = action_space.n if isinstance(action_space, Discrete) else sum(action_space.choices)
    if not isinstance(part, Box) or math.prod(part.shape) != actions:
        wanted = f"one entry for each of the {actions} choices of {action_space}"
        raise ConfigError(f"observations have '{MASK}' {part}, expected {wanted}: rename that part if it is no mask")
    return part


def without_parts(parts: Any, names: tuple[str, ...]) -> Any:
    """A dictionary space, or an observation of it, without these parts; a lone `observation` stands for itself."""
    if isinstance(parts, Dict):
        rest = tuple((name, part) for name, part in parts.spaces if name not in names)
        return rest[0][1] if [name for name, _ in rest] == ["observation"] else Dict(rest)
    if not isinstance(parts, dict):
        return parts
    kept = {name: part for name, part in parts.items() if name not in names}
    return kept["observation"] if list(kept) == ["observation"] else kept
