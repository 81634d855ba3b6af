"""Advantage actor-critic (Mnih et al., 2016): A2C, or A3C where gradients may be of older parameters."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_critic import ActorCritic, State
from fragmenta.algorithms.limits import FRACTION, Limit
from fragmenta.algorithms.neural import Learner
from fragmenta.envs import Environment, Transition
from fragmenta.rl import (
    ValueFit,
    explained_variance,
    generalized_advantage,
    normalize_advantage,
    split_each,
    value_fit,
)
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class A2C(ActorCritic):
    """One gradient per iteration from a few steps of every environment."""

    allows_lag: ClassVar[bool] = True  # A3C tolerates gradients that are a few versions old

    limits: ClassVar[dict[str, Limit]] = {"gae_lambda": FRACTION}
    without_memory: ClassVar[str] = ""

    num_envs: int = 8
    horizon: int = 8
    gae_lambda: float = 0.95
    """How far advantages look ahead: 0 is one step, 1 the whole episode."""
    normalize_advantages: bool = True
    """Scale advantages to mean 0 and standard deviation 1."""

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys = split_each(state.keys)
        state, trajectory, _ = self.experience(env, state, act_keys)
        learner, losses = self.learn(env, state.learner, trajectory)
        return state._replace(learner=learner, keys=keys), losses

    @stage
    def learn(self, env: Environment, learner: Learner, trajectory: Transition) -> tuple[Learner, dict[str, jax.Array]]:
        """Update policy and value on one iteration's steps."""
        gradients, (losses, fit) = self.gradient(env, learner.params, trajectory)
        learner = self.apply(learner, gradients)
        return learner, {**losses, "explained_variance": explained_variance(fit)}

    @stage
    def gradient(self, env: Environment, params: Any, trajectory: Transition) -> tuple[Any, tuple[Any, ValueFit]]:
        """The gradient of the loss on a trajectory, the losses, and the value fit."""
        value, next_value = self.values_along(env, params, trajectory)
        advantage = generalized_advantage(trajectory, value, next_value, self.gamma, self.gae_lambda)
        target = advantage + value

        weight = normalize_advantage(advantage) if self.normalize_advantages else advantage

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            encoded = self.encode_all(env, params, trajectory.observation)
            policy = self.policy(env, params, encoded)
            policy_loss = -jnp.mean(policy.log_prob(trajectory.action) * weight)
            value_loss = 0.5 * jnp.mean((self.value(params, encoded) - target) ** 2)
            entropy = jnp.mean(policy.entropy())
            losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
            return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, losses

        gradients, losses = jax.grad(loss, has_aux=True)(params)
        return gradients, (losses, value_fit(target, target - value))
