"""The result of a run."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.runs.describing import as_html, describe
from fragmenta.runs.predicting import TrainedPolicy
from fragmenta.runs.seeds import Seeds


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """The result of training: parameters, the full state, one record per iteration, and the summary."""

    params: Any
    state: Any
    """None in place of the arrays of a large replay, which are not brought together."""
    metrics: Sequence[dict[str, Any]]
    """For a run with a directory, read from disk on first access."""
    summary: dict[str, Any]
    algorithm: Algorithm
    env: Environment

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        alive: Any = None,
        action_mask: Any = None,
    ) -> tuple[np.ndarray, Any]:
        """The action for an observation, or those for a batch, and the memory to pass to the next call as `state`;
        `alive` says which agents of a team are active, `action_mask` which actions are legal: by default all."""
        return self._policy.predict(observation, state, episode_start, deterministic, alive, action_mask)

    def __repr__(self) -> str:
        return f"Result of {describe(self.summary)}"

    def _repr_html_(self) -> str:
        return as_html(repr(self), self.metrics, self.summary)

    @functools.cached_property
    def _policy(self) -> TrainedPolicy:
        if isinstance(self.algorithm, Seeds):
            seeds = self.algorithm.seeds
            one = f"fragmenta.load('RUN/seed-{seeds[0]}').predict"
            raise ConfigError(f"{len(seeds)} seeds were trained: give a run_dir RUN and choose one, as in {one}")
        return TrainedPolicy(self.algorithm, self.env, self.params)
