"""Environments in the middle of their episodes, on their way to another process."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fragmenta_host.single import Single, StepResult

STEPS = 16
"""So many steps before and after an environment is copied show whether the copy goes on like it."""


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Environments, pickled between two steps, with what their pool knows about them."""

    seeds: np.ndarray
    step: int
    observation: list[np.ndarray]
    envs: list[bytes]


def joined(parts: Sequence[Episodes]) -> Episodes:
    """Those of several pools, one after the other."""
    observation = [np.concatenate(leaves) for leaves in zip(*(part.observation for part in parts), strict=True)]
    envs = [env for part in parts for env in part.envs]
    return Episodes(np.concatenate([part.seeds for part in parts]), max(part.step for part in parts), observation, envs)


def can_be_pickled(make: Callable[[], Single]) -> bool:
    """Whether an environment that is pickled goes on as if nothing had happened. Many, such as those of MuJoCo, are
    pickled without their state, which only shows in what they do."""
    env, copy = make(), make()
    try:
        env.reset(0)
        for _ in range(STEPS):
            _act([env], env.random_action())
        copy.restore(env.saved())
        return all(_act([env, copy], env.random_action()) for _ in range(STEPS)) and _agree(
            [env.parts([one.reset(None)[0]]) for one in (env, copy)]
        )
    except Exception:
        return False
    finally:
        env.close()
        copy.close()


def _act(envs: Sequence[Single], action: Any) -> bool:
    """One step of each, and the next episode where one ends; whether they agree."""
    results: list[StepResult] = [env.step(action) for env in envs]
    views = [(*env.parts([result[0]]), *result[1:4]) for env, result in zip(envs, results, strict=True)]
    if any(result[2] or result[3] for result in results):
        views += [env.parts([env.reset(None)[0]]) for env in envs] if _agree(views) else []
        return _agree(views[: len(envs)]) and _agree(views[len(envs) :])
    return _agree(views)


def _agree(views: Sequence[Any]) -> bool:
    """Whether all have the same values."""
    rows = [[np.asarray(value) for value in view] for view in views]
    return all(np.array_equal(a, b) for row in rows[1:] for a, b in zip(rows[0], row, strict=True))
