"""EnvPool environments, many at once in its own threads.

EnvPool resets an environment one step late: the step after the end of an episode ignores its action and returns the
first observation of the next. Here only those environments take that step at once, so that every row returned is a
step with an action.
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
    """A vector of environments of one task, each seeded by its own entry of `seeds`, independent of the others."""

    @staticmethod
    def describe(name: str, arguments: dict[str, Any], stack: int) -> Description:
        """The task's spaces and limits. If it has `reward_clip`, as Atari games do, that applies to the learner only.

        The learner gets clipped rewards unless it is false; episode returns always use the game's own score.
        """
        if name not in (names := envpool.list_all_envs()):
            raise unknown("envpool environment", name, names)
        try:
            reserved = {"num_envs": 1, "num_threads": 1, "seed": 0}  # so that arguments with these names are rejected
            spec: Any = envpool.make_spec(name, **reserved, **_arguments(name, arguments, stack))
            observation, action = _spaces(spec)
            converted = convert(observation), action_space(action)
        except UnusableError:
            raise
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:
            raise UnusableError(f"cannot make envpool:{name}: {error}".splitlines()[0]) from error
        if spec.config.max_num_players > 1:
            raise UnusableError(
                f"envpool:{name} has {spec.config.max_num_players} players: choose one with a single player"
            )
        clipped = hasattr(spec.config, "reward_clip") and bool(arguments.get("reward_clip", True))
        return Description(*converted, None, getattr(spec.config, "max_episode_steps", None), clipped)

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
        self._flat, self._to_actions = flattener(observation), action_maker(action)
        self._shapes = [shape for _, shape, _ in leaves(convert(observation))]
        # The action itself comes after the indices of environments and players; -1 stands for the rows.
        *_, action_spec = self._env.spec.action_array_spec.values()
        self._action_shape = [size for size in action_spec.shape if size != -1]

    def reset(self) -> list[np.ndarray]:
        """The first observations."""
        return self._parts(self._env.reset()[0])

    def step(self, arrays: Arrays, rows: slice) -> None:
        """One step of all environments, and the reset of those whose episode ended."""
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
        """Drop the vector; its threads end when it is garbage-collected."""
        self._env = None

    def _action(self, rows: np.ndarray) -> np.ndarray:
        return np.reshape(self._to_actions(rows), (len(rows), *self._action_shape))

    def _parts(self, observation: Any) -> list[np.ndarray]:
        """The arrays of an observation; EnvPool returns some integers as arrays of length one."""
        return [leaf.reshape(-1, *shape) for leaf, shape in zip(self._flat(observation), self._shapes, strict=True)]


def _arguments(name: str, arguments: dict[str, Any], stack: int) -> dict[str, Any]:
    """Arguments for EnvPool: unclipped rewards, and the stack under the task's own name for it."""
    fields, arguments = envpool.make_spec(name).config._fields, dict(arguments)
    if "reward_clip" in fields:
        arguments["reward_clip"] = False
    if stack > 1:
        key = next((key for key in ("stack_num", "frame_stack") if key in fields), None)
        if key is None:
            raise UnusableError(f"envpool:{name} cannot stack observations: leave out stack")
        arguments.setdefault(key, stack)
    return arguments


def _spaces(source: Any) -> tuple[spaces.Space, spaces.Space]:
    with warnings.catch_warnings():  # float64 bounds become float32, and Gymnasium warns about it every time
        warnings.simplefilter("ignore")
        return source.observation_space, source.action_space
