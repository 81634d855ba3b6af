"""Names of the leaves of a pytree: the same in graphs, checkpoints and messages."""

from collections.abc import Sequence
from typing import Any

import jax


def leaf_name(path: Any) -> str:
    """The name of the leaf at a path of a tree, as in `learner.params.policy.kernel_0`."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def leaf_names(tree: Any) -> tuple[str, ...]:
    """The names of all leaves, in order."""
    return tuple(leaf_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree))


def is_in(name: str, fields: Sequence[str]) -> bool:
    """Whether a leaf is part of one of these fields of the tree."""
    return any(f"{name}.".startswith(f"{field}.") for field in fields)
