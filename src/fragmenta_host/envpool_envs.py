"""EnvPool's environments, many at once in its own threads.

EnvPool resets an environment one step late: the step after the end of an episode ignores its action and answers with
the first observation of the next. Here those environments, and no others, take that step at once, so that every row
that goes out is of a step that was acted in.
"""

import warnings
from typing import Any

import envpool
import numpy as np
from gymnasium import spaces

from fragmenta_core.arrays import Arrays, Description
from fragmenta_core.faults import UnusableError, unknown
from fragmenta_core.spaces import leaves
from fragmenta_host.gymnasium_spaces import action_maker, action_space, convert, flattener


class EnvPool:
    """A vector of one task's environments, each seeded by its own entry of `seeds`, whoever else is in the vector."""

    @staticmethod
    def describe(name: str, arguments: dict[str, Any], stack: int) -> Description:
        """What the task shows and takes. Where it has `reward_clip`, as Atari games do, that concerns learners only.

        They see clipped rewards unless it is false; episodes are counted by the game's own score in any case.
        """
        if name not in (known := envpool.list_all_envs()):
            raise unknown("envpool environment", name, known)
        try:
            own = {"num_envs": 1, "num_threads": 1, "seed": 0}  # so that arguments of these names are refused
            spec: Any = envpool.make_spec(name, **own, **_arguments(name, arguments, stack))
            observation, action = _spaces(spec)
            shown, taken = convert(observation), action_space(action)
        except UnusableError:
            raise
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            raise UnusableError(f"cannot make envpool:{name}: {error}".splitlines()[0]) from error
        if spec.config.max_num_players > 1:
            raise UnusableError(f"envpool:{name} has {spec.config.max_num_players} players: choose one with one")
        clipped = hasattr(spec.config, "reward_clip") and bool(arguments.get("reward_clip", True))
        return Description(shown, taken, None, getattr(spec.config, "max_episode_steps", None), clipped)

    def __init__(self, name: str, arguments: dict[str, Any], stack: int, seeds: np.ndarray, threads: int) -> None:
        self._env: Any = envpool.make(
            name,
            "gymnasium",
            num_envs=len(seeds),
            num_threads=min(threads, len(seeds)),
            seed=[int(seed) for seed in seeds],
            **_arguments(name, arguments, stack),
        )
        observation, action = _spaces(self._env)
        self._flat, self._made = flattener(observation), action_maker(action)
        self._shapes = [shape for _, shape, _ in leaves(convert(observation))]
        # What is meant comes after the indices of environments and players; -1 stands for the rows.
        *_, taken = self._env.spec.action_array_spec.values()
        self._action_shape = [size for size in taken.shape if size != -1]

    def reset(self) -> list[np.ndarray]:
        """The first observations."""
        return self._parts(self._env.reset()[0])

    def step(self, arrays: Arrays, rows: slice) -> None:
        """One step of all, and the reset of those whose episode ended with it."""
        action = self._action(arrays.action[rows])
        observation, arrays.reward[rows], terminated, truncated, _ = self._env.step(action)
        arrays.terminated[rows], arrays.truncated[rows] = terminated, truncated
        for target, part in zip(arrays.next, self._parts(observation), strict=True):
            target[rows] = part
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            first, *_ = self._env.step(action[ended], ended)
            for target, part in zip(arrays.observation, self._parts(first), strict=True):
                target[rows.start + ended] = part

    def close(self) -> None:
        """End its threads, which it does when nobody holds it any more."""
        self._env = None

    def _action(self, rows: np.ndarray) -> np.ndarray:
        return np.reshape(self._made(rows), (len(rows), *self._action_shape))

    def _parts(self, observation: Any) -> list[np.ndarray]:
        """The arrays of an observation; EnvPool has some integers in a row of one."""
        return [leaf.reshape(-1, *shape) for leaf, shape in zip(self._flat(observation), self._shapes, strict=True)]


def _arguments(name: str, arguments: dict[str, Any], stack: int) -> dict[str, Any]:
    """What EnvPool is given: rewards as they are, and the stack by the name that the task has for it."""
    known, found = envpool.make_spec(name).config._fields, dict(arguments)
    if "reward_clip" in known:
        found["reward_clip"] = False
    if stack > 1:
        key = next((key for key in ("stack_num", "frame_stack") if key in known), None)
        if key is None:
            raise UnusableError(f"envpool:{name} cannot stack observations: leave out stack")
        found.setdefault(key, stack)
    return found


def _spaces(source: Any) -> tuple[spaces.Space, spaces.Space]:
    with warnings.catch_warnings():  # bounds of float64 become float32, which Gymnasium warns of every time
        warnings.simplefilter("ignore")
        return source.observation_space, source.action_space
