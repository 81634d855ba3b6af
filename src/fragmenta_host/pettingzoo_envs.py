"""PettingZoo environments, via its parallel API: inactive agents keep their rows, and a mask marks the active ones."""

import importlib
import pickle
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from fragmenta_core.arrays import Description
from fragmenta_core.faults import UnusableError, WrongValueError
from fragmenta_core.loading import construct, load
from fragmenta_core.spaces import leaves
from fragmenta_core.teams import MASK
from fragmenta_host.catalogue import Spec
from fragmenta_host.gymnasium_spaces import convert, flattener, mismatch
from fragmenta_host.pettingzoo_spaces import team_spaces
from fragmenta_host.single import ResetResult, StepResult
from fragmenta_host.values import short_text

MOVED = {"mpe": "mpe2"}
"""Families that have become separate packages."""
FAMILIES = ("atari", "butterfly", "classic", "sisl")
"""Families still in PettingZoo, each with an extra of the same name for its dependencies."""
RESET = "observations", "infos"
STEP = "observations", "rewards", "terminations", "truncations", "infos"
"""What a reset and a step return: a dictionary by agent each."""


class PettingZooEnv:
    """One parallel environment: `butterfly/pistonball_v6`, or a user's module that has `parallel_env`.

    Its agents are `possible_agents`, in that order. An episode ends when no agent is left; it is truncated if one of
    the last was. An agent that is truncated while others continue counts as one that dropped out.
    """

    def __init__(self, spec: Spec) -> None:
        title = str(spec)
        if spec.stack > 1:
            raise UnusableError(
                f"{title} cannot stack: leave out stack, and wrap it, for example in supersuit:frame_stack_v1"
            )
        maker = getattr(_module(spec.name, title), "parallel_env", None)
        if maker is None:
            raise UnusableError(
                f"{title} has no parallel_env, so its agents take turns: choose one where they act together"
            )
        self.env: ParallelEnv = construct(maker, **spec.arguments)
        for wrapper in spec.wrappers:
            self.env = construct(load("wrapper", wrapper), self.env)
        self._agents: list[Any] = list(getattr(self.env, "possible_agents", ()))
        if not self._agents:
            raise UnusableError(f"{title} has no possible_agents, so its agents are not known in advance")
        self._spaces = [self.env.observation_space(agent) for agent in self._agents]
        self._action_spaces = [self.env.action_space(agent) for agent in self._agents]
        self._team = team_spaces(title, self._spaces, self._action_spaces, self._has_info_masks())
        observation, action = self._team.observation, self._team.action
        self.description = Description(observation, action, len(self._agents), bounds=self._team.bounds)
        self._empty = [np.zeros(shape, dtype) for _, shape, dtype in leaves(observation)]

    def reset(self, seed: int | None) -> ResetResult:
        """Start an episode."""
        observations, infos = _dictionaries(self.env.reset(seed=seed), RESET)
        return self._rows(observations, infos, self.env.agents), self._mask(self.env.agents)

    def step(self, action: Any) -> StepResult:
        """One step of the active agents; the actions of the others are dropped."""
        active = set(self.env.agents)
        actions = {agent: chosen for agent, chosen in zip(self._agents, action, strict=True) if agent in active}
        observations, rewards, terminated, truncated, infos = _dictionaries(self.env.step(actions), STEP)
        remaining = [a for a in self.env.agents if not terminated.get(a, False) and not truncated.get(a, False)]
        rows, reward = self._rows(observations, infos, remaining), self._rewards(rewards, active, remaining)
        if remaining:
            return rows, reward, False, False, self._mask(remaining)
        # An agent truncated at the end would have continued: its last observation still has a value.
        cut = [agent for agent in active if truncated.get(agent, False) and not terminated.get(agent, False)]
        return rows, reward, not cut, bool(cut), self._mask(cut)

    def parts(self, observations: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """Observations are converted to arrays at every step already, because some agents may have none."""
        return zip(*observations, strict=True)

    def mismatch(self, observation: Any) -> str | None:
        """None: agents' observations are converted in `step`, which says whose does not fit its space."""
        return None

    def alive(self, infos: Sequence[Any]) -> Sequence[Any]:
        """The infos of this adapter are the masks of active agents."""
        return infos

    def actions(self, rows: np.ndarray) -> Any:
        """One action per agent for every environment."""
        return self._team.actions(rows)

    def random_action(self) -> Any:
        """A random action for every agent."""
        return [space.sample() for space in self._action_spaces]

    def saved(self) -> bytes:
        """The environment itself, pickled."""
        return pickle.dumps(self.env)

    def restore(self, data: bytes) -> None:
        """Go on with an environment that was pickled."""
        self.env.close()
        self.env = pickle.loads(data)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _has_info_masks(self) -> bool:
        """Whether infos have masks of legal actions, which only an episode shows."""
        if not all(isinstance(space, spaces.Discrete) for space in self._action_spaces):
            return False
        try:
            _, infos = self.env.reset(seed=0)
            return any(isinstance(info, Mapping) and MASK in info for info in infos.values())
        except Exception:
            return False  # the first reset of the run reports what is wrong

    def _rows(self, observations: Mapping[Any, Any], infos: Any, remaining: Sequence[Any]) -> list[np.ndarray]:
        """The arrays of all agents' observations, zero for agents without one, which must have dropped out."""
        known = infos if isinstance(infos, Mapping) else {}
        try:
            leaves_per_agent = [
                flat(observations[agent], known.get(agent)) if agent in observations else self._empty
                for agent, flat in zip(self._agents, self._team.flats, strict=True)
            ]
            rows = [np.stack(parts) for parts in zip(*leaves_per_agent, strict=True)]
            if all(map(observations.__contains__, remaining)) and all(row.dtype.kind in "biuf" for row in rows):
                return rows
        except Exception:
            if not self._problem(observations, remaining):
                raise
        raise WrongValueError(self._problem(observations, remaining))

    def _problem(self, observations: Mapping[Any, Any], remaining: Sequence[Any]) -> str:
        """What is wrong with the observations, in words; empty if nothing is."""
        for agent in remaining:
            if agent not in observations:
                returned = ", ".join(map(str, observations)) or "none"
                return f"returned observations without '{agent}', which is active (returned: {returned})"
        for agent, value in observations.items():
            name, space = f"observation of '{agent}'", self._spaces[self._agents.index(agent)]
            if problem := mismatch(space, value, name):
                return problem
            for leaf, (_, shape, _) in zip(flattener(space)(value), leaves(convert(space)), strict=True):
                if np.shape(leaf) != shape:
                    return f"returned {name} of shape {np.shape(leaf)}, expected {shape}"
        return ""

    def _rewards(self, rewards: Mapping[Any, Any], active: set[Any], remaining: Sequence[Any]) -> np.ndarray:
        """The rewards of all agents, zero for those that had dropped out."""
        for agent in remaining:
            if agent not in rewards:
                raise WrongValueError(f"returned rewards without '{agent}', which is active")
        values = [rewards.get(agent, 0.0) if agent in active else 0.0 for agent in self._agents]
        for agent, value in zip(self._agents, values, strict=True):
            if type(value) is not float and (np.ndim(value) or np.asarray(value).dtype.kind not in "biuf"):
                raise WrongValueError(f"returned reward {short_text(value)} of '{agent}', expected a number")
        return np.array(values, np.float32)

    def _mask(self, agents: list[Any]) -> np.ndarray:
        return np.asarray([agent in agents for agent in self._agents])


def _dictionaries(result: Any, names: tuple[str, ...]) -> Any:
    """What a reset or a step returned, all of it by agent."""
    if not isinstance(result, tuple) or len(result) != len(names):
        returned = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise WrongValueError(f"returned {returned}, expected {', '.join(names)}")
    for name, value in zip(names[:-1], result, strict=False):
        if not isinstance(value, Mapping):
            raise WrongValueError(f"returned {short_text(value)} as its {name}, expected a dictionary by agent")
    return result


def _module(name: str, title: str) -> ModuleType:
    """PettingZoo's module with that name, or the user's own."""
    path = name.replace("/", ".")
    family, _, rest = path.partition(".")
    if family in MOVED:
        path = f"{MOVED[family]}.{rest}"
    try:
        return importlib.import_module(f"pettingzoo.{path}" if family in FAMILIES else path)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if family in FAMILIES and missing.startswith("pettingzoo"):
            raise UnusableError(f"cannot load '{title}': {error}") from error
        if family in FAMILIES:
            raise UnusableError(f"{title} needs {missing}: pip install 'pettingzoo[{family}]'") from error
        if missing in MOVED.values():
            raise UnusableError(f"{title} needs {missing}: pip install 'fragmenta[pettingzoo]'") from error
        if missing != path and not path.startswith(f"{missing}."):  # the module exists and fails: the user's own code
            raise
        raise UnusableError(f"cannot load '{title}': there is no PettingZoo environment or module {name}") from error
