"""REINFORCE (Williams, 1992): policy gradients from the returns of whole episodes, with a learned baseline."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_critic import ActorCritic, State
from fragmenta.algorithms.neural import Learner
from fragmenta.envs import Environment, Transition
from fragmenta.rl import ValueFit, explained_variance, split_each, value_fit
from fragmenta.rl.returns import returns_to_go
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class REINFORCE(ActorCritic):
    """One gradient per iteration, from all steps whose episode ended in it; no value stands in for a reward."""

    without_memory: ClassVar[str] = ""

    num_envs: int = 2
    horizon: int = 512
    """Steps per environment and iteration; steps of episodes that end later are left out, so take the longest."""
    learning_rate: float = 3e-3
    baseline: bool = True
    """Subtract a learned value from the returns, which reduces their variance; otherwise their mean."""

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys = split_each(state.keys)
        state, trajectory, _ = self.experience(env, state, act_keys)
        learner, losses = self.learn(env, state.learner, trajectory)
        return state._replace(learner=learner, keys=keys), losses

    @stage
    def learn(self, env: Environment, learner: Learner, trajectory: Transition) -> tuple[Learner, dict[str, jax.Array]]:
        """Update the policy, and the baseline if there is one, on one iteration's steps."""
        gradients, (losses, fit) = self.gradient(env, learner.params, trajectory)
        return self.apply(learner, gradients), {**losses, "explained_variance": explained_variance(fit)}

    @stage
    def gradient(self, env: Environment, params: Any, trajectory: Transition) -> tuple[Any, tuple[Any, ValueFit]]:
        """The gradient of the loss on a trajectory, the losses, and the fit of the baseline."""
        total, is_whole = returns_to_go(trajectory, self.gamma)
        count = jnp.maximum(jnp.sum(is_whole, dtype=jnp.float32), 1.0)

        def mean(x: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(is_whole, x, 0.0)) / count

        value = self.value(params, self.encode_all(env, params, trajectory.observation))
        advantage = total - (value if self.baseline else mean(total))
        center = mean(advantage)
        weight = (advantage - center) / (jnp.sqrt(mean((advantage - center) ** 2)) + 1e-8)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            encoded = self.encode_all(env, params, trajectory.observation)
            policy = self.policy(env, params, encoded)
            policy_loss = -mean(policy.log_prob(trajectory.action) * weight)
            value_loss = 0.5 * mean((self.value(params, encoded) - total) ** 2)
            entropy = mean(policy.entropy())
            losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
            return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, losses

        gradients, losses = jax.grad(loss, has_aux=True)(params)
        return gradients, (losses, value_fit(total, total - value, is_whole))
