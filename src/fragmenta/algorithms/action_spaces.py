"""From the outputs of a network to a distribution over an environment's actions."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.envs import Box, Discrete, MultiDiscrete, Space
from fragmenta.rl import Categorical, MultiCategorical, Normal


def outputs_for(space: Space) -> int:
    """The number of network outputs that parametrise a distribution over the space."""
    if isinstance(space, Discrete):
        return space.n
    if isinstance(space, MultiDiscrete):
        return sum(space.choices)
    assert isinstance(space, Box)
    return math.prod(space.shape)


def distribution_over(space: Space, outputs: jax.Array, log_std: Any) -> Categorical | MultiCategorical | Normal:
    """The distribution over the space with these outputs; `log_std` is used for continuous actions alone."""
    if isinstance(space, Discrete):
        return Categorical(outputs)
    if isinstance(space, MultiDiscrete):
        starts = list(itertools.accumulate(space.choices[:-1]))
        return MultiCategorical(tuple(Categorical(part) for part in jnp.split(outputs, starts, axis=-1)))
    assert isinstance(space, Box)
    return Normal(outputs.reshape(*outputs.shape[:-1], *space.shape), log_std)
