"""Shared by off-policy algorithms that standardise observations with running statistics."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.off_policy import OffPolicy, OffPolicyState
from fragmenta.envs import Environment
from fragmenta.rl.normalize import add_observations, no_moments, standardized
from fragmenta.rl.replay import Batch
from fragmenta.stage import stage

MOMENTS = "moments"
"""The name of the running statistics beside the networks, in what acting needs."""


@dataclasses.dataclass(frozen=True)
class Standardizing(OffPolicy):
    """The replay keeps observations as they are; batches are standardised when they are drawn.

    The statistics are those of the batches, which are where learning is: so nothing but them crosses to a learner that
    has neither the environments nor the replay.
    """

    normalize_observations: bool = False
    """Standardise observations with running statistics, from all batches so far."""

    def init(self, env: Environment, key: jax.Array) -> OffPolicyState:
        state = super().init(env, key)
        return state._replace(moments=no_moments(env.observation_space)) if self.normalize_observations else state

    def params(self, state: OffPolicyState) -> Any:
        """Everything acting needs: networks, and the moments of observations if they are normalised."""
        moments = {MOMENTS: state.moments} if self.normalize_observations else {}
        return {**state.learner.params, **moments}

    def with_params(self, state: OffPolicyState, params: Any) -> OffPolicyState:
        networks, moments = _apart(params)
        return super().with_params(state, networks)._replace(moments=moments.get(MOMENTS, state.moments))

    def acting(self, params: Any) -> Any:
        networks, moments = _apart(params)
        return {**super().acting(networks), **moments}

    def features(self, env: Environment, params: Any, observation: Any) -> Encoded:
        # Those of batches are standardised already, and come without moments.
        if MOMENTS in params:
            observation = standardized(params[MOMENTS], observation)
        return super().features(env, params, observation)

    def to_learn(self, state: OffPolicyState, batches: Any, is_ready: jax.Array) -> tuple[Any, Any]:
        if not self.normalize_observations:
            return state.moments, batches
        return self.normalize(state.moments, batches, is_ready)

    @stage
    def normalize(self, moments: Any, batches: Batch, is_ready: jax.Array) -> tuple[Any, Batch]:
        """Add the observations of batches to the moments, unless it is too early, and standardise the batches."""
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batches.observation)
        added = add_observations(moments, flat)
        moments = jax.tree.map(lambda new, old: jnp.where(is_ready, new, old), added, moments)
        return moments, batches._replace(
            observation=standardized(moments, batches.observation),
            next_observation=standardized(moments, batches.next_observation),
        )


def _apart(params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The networks and the moments, each by name."""
    networks = {name: part for name, part in params.items() if name != MOMENTS}
    return networks, {name: part for name, part in params.items() if name == MOMENTS}
