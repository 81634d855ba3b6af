"""One space for all agents of a team, whose own spaces may differ: large enough for each, which are padded to it."""

from collections.abc import Sequence

from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import MASK, Box, Dict, Discrete, Space

OBSERVATION = "observation"
"""The part of an observation beside a mask of legal actions."""


def common_actions(title: str, spaces: Sequence[Space]) -> Space:
    """The action space of a team: as many actions as the agent with the most has, or as many numbers."""
    if len(set(spaces)) == 1:
        return spaces[0]
    sizes = [space.n for space in spaces if isinstance(space, Discrete)]
    if len(sizes) == len(spaces):
        return Discrete(max(sizes))
    if widest := _widest(spaces):
        return widest
    kinds = " and ".join(sorted({type(space).__name__ for space in spaces}))
    problem = f"{title} has agents with different actions of kind {kinds}"
    raise UnusableError(f"{problem}: a team needs Discrete ones, or vectors (Box); wrap the environment")


def common_observations(title: str, spaces: Sequence[Space]) -> Space:
    """The observation space of a team: as many numbers as the agent that observes the most."""
    if len(set(spaces)) == 1:
        return spaces[0]
    if widest := _widest(spaces):
        return widest
    other = next(space for space in spaces if not _is_vector(space) or space != spaces[0])
    problem = f"{title} has agents with different observations, not all of them vectors ({other})"
    raise UnusableError(f"{problem}: wrap it, for example in supersuit:flatten_v0")


def with_mask(observation: Space, actions: int) -> Dict:
    """The space of observations with a mask of legal actions."""
    return Dict(((MASK, Box(0.0, 1.0, (actions,))), (OBSERVATION, observation)))


def _is_vector(space: Space) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1


def _widest(spaces: Sequence[Space]) -> Box | None:
    vectors = [space for space in spaces if isinstance(space, Box) and _is_vector(space)]
    if len(vectors) < len(spaces):
        return None
    width = max(space.shape[0] for space in vectors)
    low, high = min(space.low for space in vectors), max(space.high for space in vectors)
    kinds = {space.dtype for space in vectors}
    return Box(low, high, (width,), kinds.pop() if len(kinds) == 1 else "float32")
