"""Shared by actor-critic algorithms: observations and rewards divided by how much they vary."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from fragmenta.algorithms.neural import NeuralAlgorithm
from fragmenta.envs import Environment, Transition
from fragmenta.rl.normalize import (
    LIMIT,
    Moments,
    Normalizer,
    add_observations,
    no_moments,
    running_returns,
    standardized,
)
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class Normalizing(NeuralAlgorithm):
    """Learns from observations and rewards that are normalised with running statistics, if asked for."""

    normalize_observations: bool = False
    """Standardise observations with running statistics, from all steps before the current iteration."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return; reported returns stay unscaled."""

    def new_normalizer(self, env: Environment) -> Normalizer:
        """The statistics before the first step."""
        normalizer = Normalizer()
        if self.normalize_observations:
            normalizer = normalizer._replace(observation=no_moments(env.observation_space))
        if self.normalize_rewards:
            zero = jnp.zeros(())
            normalizer = normalizer._replace(reward=Moments(zero, zero, zero), running_return=jnp.zeros(self.num_envs))
        return normalizer

    def normalized(self, normalizer: Normalizer, trajectory: Transition) -> tuple[Normalizer, Transition]:
        """The updated running statistics, and the trajectory to learn from."""
        if not self.normalize_observations and not self.normalize_rewards:
            return normalizer, trajectory
        return self.normalize(normalizer, trajectory)

    @stage
    def normalize(self, normalizer: Normalizer, trajectory: Transition) -> tuple[Normalizer, Transition]:
        """Normalise a trajectory with the statistics used while acting, then update them with it."""
        if self.normalize_observations:
            moments = normalizer.observation
            normalizer = normalizer._replace(observation=add_observations(moments, trajectory.observation))
            observation = standardized(moments, trajectory.observation)
            next_observation = standardized(moments, trajectory.next_observation)
            trajectory = trajectory._replace(observation=observation, next_observation=next_observation)
        if normalizer.reward is not None and normalizer.running_return is not None:
            last, returns = running_returns(normalizer.running_return, trajectory, self.gamma)
            reward = jnp.clip(trajectory.reward / normalizer.reward.std(), -LIMIT, LIMIT)
            normalizer = normalizer._replace(reward=normalizer.reward.add(returns), running_return=last)
            trajectory = trajectory._replace(reward=reward)
        return normalizer, trajectory

    def preprocess(self, params: Any, inputs: Any) -> Any:
        """Standardise the observations in what the networks take, if observations are normalised."""
        if not self.normalize_observations:
            return inputs
        if self.remembers:
            return inputs._replace(observation=standardized(params["moments"], inputs.observation))
        return standardized(params["moments"], inputs)
