"""Gymnasium environments: every registered id, the user's own classes, and wrappers around either."""

import pickle
from collections.abc import Sequence
from typing import Any

import gymnasium

from fragmenta_core.arrays import Description
from fragmenta_core.faults import UnusableError, WrongValueError
from fragmenta_core.loading import construct, load
from fragmenta_core.spaces import MASK, Discrete, MultiDiscrete
from fragmenta_host.catalogue import Spec
from fragmenta_host.gymnasium_spaces import (
    action_maker,
    action_space,
    convert,
    exact_bounds,
    flattener,
    gatherer,
    mismatch,
)
from fragmenta_host.masks import InfoMask, LatestMask
from fragmenta_host.single import ResetResult


class GymnasiumEnv:
    """One Gymnasium environment; a package other than gymnasium is the user's module that contains the class."""

    def __init__(self, spec: Spec) -> None:
        if spec.maker is None and spec.package == "gymnasium":
            try:
                env = construct(gymnasium.make, spec.name, disable_env_checker=True, **spec.arguments)
            except gymnasium.error.Error as error:
                raise UnusableError(f"cannot make {spec}: {error}".splitlines()[0]) from error
        else:
            env = construct(spec.maker or load("environment", str(spec)), **spec.arguments)
            if not isinstance(env, gymnasium.Env):
                problem = f"{spec} is {type(env).__name__}, not a gymnasium.Env"
                name = f"pettingzoo:{spec.package}"
                hint = f": for one of PettingZoo, call it parallel_env in its module, and name it {name}"
                raise UnusableError(problem + (hint if hasattr(env, "possible_agents") else ""))
        for wrapper in spec.wrappers:
            env = construct(load("wrapper", wrapper), env)
        if spec.stack > 1:
            one = env.observation_space
            env = gymnasium.wrappers.FrameStackObservation(env, spec.stack)
            if isinstance(one, gymnasium.spaces.Dict) and MASK in one.spaces:
                env = LatestMask(env, one[MASK])
        if spec.info_masks:
            env = InfoMask(env)
        for space in ("observation_space", "action_space"):
            if getattr(env, space, None) is None:
                raise UnusableError(f"{spec} has no {space}: set it in its constructor")
        self.env = env
        self._belongs_to_caller = bool(spec.bound_here and spec.bound_here.is_single)
        self._space, action = env.observation_space, env.action_space
        limit = env.spec.max_episode_steps if env.spec else None
        converted = convert(self._space), action_space(action)
        bounds = exact_bounds(self._space)
        self.description = Description(*converted, None, limit, bounds=bounds, info_masks=spec.info_masks)
        self.step, self.parts, self.actions = env.step, gatherer(self._space), action_maker(action)
        self.flat = flattener(self._space)
        """From one observation, or a batch, to its arrays."""
        self._has_no_masks = not spec.info_masks and isinstance(converted[1], Discrete | MultiDiscrete)

    def reset(self, seed: int | None) -> ResetResult:
        """Start an episode."""
        result = self.env.reset(seed=seed)
        if self.env.observation_space is not self._space and self.env.observation_space != self._space:
            raise WrongValueError(f"changed its observation space from {self._space} to {self.env.observation_space}")
        return result

    def mismatch(self, observation: Any) -> str | None:
        """How an observation differs from the structure of its space."""
        return mismatch(self._space, observation)

    def alive(self, infos: Sequence[Any]) -> bool:
        """The single agent is always active; raises if only later infos have a mask, which nothing would read."""
        if self._has_no_masks and any(MASK in info for info in infos if isinstance(info, dict)):
            raise WrongValueError(f"returned an info with '{MASK}', which the info of its first reset did not have")
        return True

    def random_action(self) -> Any:
        """A random action."""
        return self.env.action_space.sample()

    def saved(self) -> bytes:
        """The environment itself, pickled."""
        return pickle.dumps(self.env)

    def restore(self, data: bytes) -> None:
        """Go on with an environment that was pickled."""
        self.close()
        self.env = pickle.loads(data)
        self._space, self.step = self.env.observation_space, self.env.step

    def close(self) -> None:
        """Close the environment, unless the caller goes on using it."""
        if not self._belongs_to_caller:
            self.env.close()
