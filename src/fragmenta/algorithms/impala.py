"""Importance-weighted actor-learner architecture (Espeholt et al., 2018): actors may lag, V-trace corrects for it."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_critic import ActorCritic, State
from fragmenta.algorithms.limits import FRACTION, POSITIVE, Limit
from fragmenta.algorithms.neural import Learner
from fragmenta.envs import Environment, Transition
from fragmenta.rl import ValueFit, explained_variance, normalize_advantage, split_each, v_trace, value_fit
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class IMPALA(ActorCritic):
    """One gradient per trajectory, weighted by how likely its actions are under the learner's policy."""

    allows_lag: ClassVar[bool] = True

    limits: ClassVar[dict[str, Limit]] = {"trace_decay": FRACTION, "clip_rho": POSITIVE, "clip_c": POSITIVE}
    without_memory: ClassVar[str] = ""

    num_envs: int = 8
    horizon: int = 8
    normalize_advantages: bool = True
    """Scale advantages to mean 0 and standard deviation 1."""
    trace_decay: float = 0.95
    """Lambda of V-trace: how far corrections propagate back in time."""
    clip_rho: float = 1.0
    """Limit of the importance weights of V-trace's corrections: which policy the value is of."""
    clip_c: float = 1.0
    """Limit of the importance weights along the trajectory: how fast corrections fade."""

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys = split_each(state.keys)
        state, trajectory, log_prob = self.experience(env, state, act_keys)
        learner, losses = self.learn(env, state.learner, trajectory, log_prob)
        return state._replace(learner=learner, keys=keys), losses

    @stage
    def learn(
        self, env: Environment, learner: Learner, trajectory: Transition, log_prob: jax.Array
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """Update policy and value on one iteration's steps."""
        gradients, (losses, fit) = self.gradient(env, learner.params, trajectory, log_prob)
        learner = self.apply(learner, gradients)
        return learner, {**losses, "explained_variance": explained_variance(fit)}

    @stage
    def gradient(
        self, env: Environment, params: Any, trajectory: Transition, log_prob: jax.Array
    ) -> tuple[Any, tuple[Any, ValueFit]]:
        """The gradient of the loss on a trajectory, possibly of an older policy, the losses, and the value fit."""
        value, next_value = self.values_along(env, params, trajectory)
        current = self.policy(env, params, self.encode_all(env, params, trajectory.observation))
        log_ratio = current.log_prob(trajectory.action) - log_prob
        limits = self.clip_rho, self.clip_c
        target, advantage = v_trace(trajectory, value, next_value, log_ratio, self.gamma, self.trace_decay, *limits)

        weight = normalize_advantage(advantage) if self.normalize_advantages else advantage

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            encoded = self.encode_all(env, params, trajectory.observation)
            policy = self.policy(env, params, encoded)
            policy_loss = -jnp.mean(policy.log_prob(trajectory.action) * weight)
            value_loss = 0.5 * jnp.mean((self.value(params, encoded) - target) ** 2)
            entropy = jnp.mean(policy.entropy())
            losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
            losses["ratio"] = jnp.mean(jnp.exp(log_ratio))
            return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, losses

        gradients, losses = jax.grad(loss, has_aux=True)(params)
        return gradients, (losses, value_fit(target, target - value))
