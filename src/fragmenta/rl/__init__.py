"""RL building blocks: action distributions, returns, minibatches, random keys and normalisation."""

from fragmenta.rl.distributions import Categorical, MultiCategorical, Normal
from fragmenta.rl.keys import fold_each, keys_by_index, split_each
from fragmenta.rl.minibatches import permutation, steps_of_chunks, steps_of_minibatches, take_steps
from fragmenta.rl.returns import (
    ValueFit,
    explained_variance,
    generalized_advantage,
    next_values,
    normalize_advantage,
    v_trace,
    value_fit,
)

__all__ = [
    "Categorical",
    "MultiCategorical",
    "Normal",
    "ValueFit",
    "explained_variance",
    "fold_each",
    "generalized_advantage",
    "keys_by_index",
    "next_values",
    "normalize_advantage",
    "permutation",
    "split_each",
    "steps_of_chunks",
    "steps_of_minibatches",
    "take_steps",
    "v_trace",
    "value_fit",
]
