"""The spaces of a PettingZoo team as one, with conversions of each agent's values; unlike ones are padded."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from fragmenta_core.bounds import Bounds
from fragmenta_core.faults import WrongValueError
from fragmenta_core.spaces import Box, Discrete, Space
from fragmenta_core.teams import MASK, OBSERVATION, common_actions, common_observations, with_mask
from fragmenta_host.gymnasium_spaces import action_maker, action_space, convert, exact_bounds, flattener
from fragmenta_host.values import short_text

Flat = Callable[[Any, Any], list[Any]]
"""From an agent's observation and info to the arrays of its row."""


@dataclasses.dataclass(frozen=True)
class TeamSpaces:
    """What a team observes and does."""

    observation: Space
    action: Space
    bounds: tuple[Bounds, ...]
    flats: tuple[Flat, ...]
    """One per agent."""
    actions: Callable[[np.ndarray], list[Any]]
    """From rows, one per environment, to the actions of all agents of each."""


def team_spaces(title: str, observations: Sequence[Any], actions: Sequence[Any], has_info_masks: bool) -> TeamSpaces:
    """The spaces of agents with these observation and action spaces, some of whose infos may have an `action_mask`."""
    pairs = [*zip(observations, actions, strict=True)]
    if not has_info_masks and all(pair == pairs[0] for pair in pairs):
        return _equal_spaces(observations[0], actions[0], len(observations))
    plain = [convert(space[OBSERVATION] if has_mask(space) else space) for space in observations]
    choices = [action_space(space) for space in actions]
    observation, action = common_observations(title, plain), common_actions(title, choices)
    flats = [_padded(space, observation) for space in observations]
    if isinstance(action, Discrete) and (len(set(choices)) > 1 or has_info_masks or any(map(has_mask, observations))):
        counts = [choice.n for choice in choices if isinstance(choice, Discrete)]
        flats = [_masked(flat, count, action.n) for flat, count in zip(flats, counts, strict=True)]
        observation = with_mask(observation, action.n)
    makers = [_own_action(space, choice) for space, choice in zip(actions, choices, strict=True)]

    def of_all(rows: np.ndarray) -> list[Any]:
        return [*zip(*(maker(rows[:, i]) for i, maker in enumerate(makers)), strict=True)]

    return TeamSpaces(observation, action, (), tuple(flats), of_all)


def has_mask(space: Any) -> bool:
    """Whether observations of the space are dictionaries with a mask of legal actions."""
    return isinstance(space, spaces.Dict) and set(space.spaces) == {MASK, OBSERVATION}


def _equal_spaces(observation: Any, action: Any, agents: int) -> TeamSpaces:
    flat, to_actions = flattener(observation), action_maker(action)

    def of_all(rows: np.ndarray) -> list[Any]:
        made = to_actions(rows.reshape(-1, *rows.shape[2:]))
        return [made[i : i + agents] for i in range(0, len(made), agents)]

    flats = (lambda value, _: flat(value),) * agents
    return TeamSpaces(convert(observation), action_space(action), exact_bounds(observation), flats, of_all)


def _padded(space: Any, common: Space) -> Flat:
    """From an agent's observation to its arrays, with zeros after a vector that is shorter than others'."""
    is_masked = has_mask(space)
    unmasked = space[OBSERVATION] if is_masked else space
    flat, plain = flattener(unmasked), convert(unmasked)
    if plain == common or not isinstance(plain, Box) or not isinstance(common, Box):
        return lambda value, _: flat(value[OBSERVATION] if is_masked else value)
    size, width, dtype = plain.shape[0], common.shape[0], common.dtype

    def pad(value: Any, _: Any) -> list[Any]:
        row = np.zeros(width, dtype)
        row[:size] = np.asarray(value[OBSERVATION] if is_masked else value).reshape(size)
        return [row]

    return pad


def _masked(flat: Flat, count: int, width: int) -> Flat:
    """The mask of an agent with `count` actions before the arrays of its observation, in the order of their names."""

    def with_row(value: Any, info: Any) -> list[Any]:
        mask = np.zeros(width, np.float32)
        holder = value if isinstance(value, Mapping) and MASK in value else info
        given = np.asarray(holder[MASK] if isinstance(holder, Mapping) and MASK in holder else np.ones(count))
        if given.shape != (count,) or given.dtype.kind not in "biuf":
            raise WrongValueError(f"returned {short_text(given)} as an {MASK}, expected {count} numbers")
        mask[:count] = given > 0
        return [mask, *flat(value, info)]

    return with_row


def _own_action(space: Any, choice: Space) -> Callable[[np.ndarray], Any]:
    """From rows to an agent's actions, without what was padded."""
    make = action_maker(space)
    if isinstance(choice, Discrete):
        return lambda rows: make(np.minimum(rows, choice.n - 1))
    if isinstance(choice, Box) and len(choice.shape) == 1:
        return lambda rows: make(rows[:, : choice.shape[0]])
    return make
