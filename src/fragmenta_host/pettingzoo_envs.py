"""PettingZoo's environments, by its parallel API: agents that are gone keep their place, a mask says who is there."""

import importlib
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from pettingzoo import ParallelEnv

from fragmenta_core.arrays import Description
from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import leaves
from fragmenta_host.gymnasium_envs import built, load
from fragmenta_host.gymnasium_spaces import action_maker, action_space, convert, flattener
from fragmenta_host.single import Seen, StepResult

MOVED = {"mpe": "mpe2"}
"""Families that have become packages of their own."""
FAMILIES = ("atari", "butterfly", "classic", "sisl")
"""Those that PettingZoo still has, each with an extra of the same name for what it needs."""


class PettingZooEnv:
    """One parallel environment: `butterfly/pistonball_v6`, or a module of the user's own that has `parallel_env`.

    Its agents are `possible_agents`, in that order. An episode ends when none is left; it is cut off if one of the last
    was. An agent that is cut off while others go on counts as one that dropped out.
    """

    def __init__(self, package: str, name: str, arguments: dict[str, Any], wrappers: list[str], stack: int) -> None:
        title = f"{package}:{name}"
        if stack > 1:
            raise UnusableError(f"{title} is stacked by a wrapper such as supersuit:frame_stack_v1: leave out stack")
        made = getattr(_module(name, title), "parallel_env", None)
        if made is None:
            raise UnusableError(f"{title} has no parallel_env, so its agents take turns: choose one where they do not")
        self.env: ParallelEnv = built(made, **arguments)
        for wrapper in wrappers:
            self.env = built(load(wrapper), self.env)
        self._agents: list[Any] = list(getattr(self.env, "possible_agents", ()))
        if not self._agents:
            raise UnusableError(f"{title} does not say its possible_agents, so there is no end to who may come")
        shown, taken = (
            _the_same(title, kind, [space(agent) for agent in self._agents])
            for kind, space in (("observation", self.env.observation_space), ("action", self.env.action_space))
        )
        self.description = Description(convert(shown), action_space(taken), len(self._agents))
        self._flat, self._made, self._action_space = flattener(shown), action_maker(taken), taken
        self._nothing = [np.zeros(shape, dtype) for _, shape, dtype in leaves(self.description.observation)]

    def reset(self, seed: int | None) -> Seen:
        """Start an episode."""
        observations, _ = self.env.reset(seed=seed)
        return self._rows(observations), self._among(self.env.agents)

    def step(self, action: Any) -> StepResult:
        """One step of the agents that are there; what the others would do is not sent."""
        there = set(self.env.agents)
        sent = {agent: chosen for agent, chosen in zip(self._agents, action, strict=True) if agent in there}
        observations, rewards, terminated, truncated, _ = self.env.step(sent)
        reward = np.asarray([rewards.get(agent, 0.0) if agent in there else 0.0 for agent in self._agents], np.float32)
        left = [a for a in self.env.agents if not terminated.get(a, False) and not truncated.get(a, False)]
        if left:
            return self._rows(observations), reward, False, False, self._among(left)
        # Whoever was cut off at the end would have gone on: its last observation still has a value.
        cut = [agent for agent in there if truncated.get(agent, False) and not terminated.get(agent, False)]
        return self._rows(observations), reward, not cut, bool(cut), self._among(cut)

    def parts(self, observations: Sequence[Any]) -> Iterable[Sequence[Any]]:
        """Observations are made into arrays at every step here, because some agents may have none."""
        return zip(*observations, strict=True)

    def alive(self, said: Sequence[Any]) -> Sequence[Any]:
        """What a step has to say besides is who takes part."""
        return said

    def actions(self, rows: np.ndarray) -> Any:
        """For every environment one action per agent."""
        flat, count = self._made(rows.reshape(-1, *rows.shape[2:])), len(self._agents)
        return [flat[i : i + count] for i in range(0, len(flat), count)]

    def random_action(self) -> Any:
        """An action at random for every agent."""
        return [self._action_space.sample() for _ in self._agents]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _rows(self, observations: dict[Any, Any]) -> list[np.ndarray]:
        """The arrays of all agents' observations, zero for those that have none."""
        each = [self._flat(observations[a]) if a in observations else self._nothing for a in self._agents]
        return [np.stack(parts) for parts in zip(*each, strict=True)]

    def _among(self, agents: list[Any]) -> np.ndarray:
        return np.asarray([agent in agents for agent in self._agents])


def _module(name: str, title: str) -> ModuleType:
    """PettingZoo's module of that name, or the user's own."""
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
            raise UnusableError(f"{title} is in a package of its own now: pip install {missing}") from error
        if missing != path and not path.startswith(f"{missing}."):  # the module is there and fails: the user's own code
            raise
        raise UnusableError(f"cannot load '{title}': PettingZoo has no {name}, and there is no such module") from error


def _the_same(title: str, kind: str, found: list[Any]) -> Any:
    """The one space of all agents."""
    if any(space != found[0] for space in found):
        wrapper = f"supersuit:pad_{kind}{'s' if kind == 'observation' else '_space'}_v0"
        raise UnusableError(f"{title} has agents with different {kind} spaces: wrap it, for example in {wrapper}")
    return found[0]
