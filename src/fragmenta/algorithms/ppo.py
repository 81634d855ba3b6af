"""Proximal policy optimization (Schulman et al., 2017), for discrete and continuous actions."""

import dataclasses
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta.algorithms.actor_critic import ActorCritic, Learner, State, clipped_adam
from fragmenta.envs import Environment, Transition
from fragmenta.errors import ConfigError
from fragmenta.rl import fold_each, generalized_advantage, next_values, rows_of_minibatches, split_each
from fragmenta.stage import all_mean, all_sum, stage


class Sample(NamedTuple):
    """What the loss needs of a step."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    value: jax.Array


@dataclasses.dataclass(frozen=True)
class PPO(ActorCritic):
    """Clipped policy updates over a few epochs of minibatches, drawn per environment."""

    allows_lag: ClassVar[bool] = True  # the ratio of the loss is to the policy that acted

    epochs: int = 4
    """Passes over each iteration's steps."""
    minibatches: int = 4
    """Minibatches per pass; each holds a slice of every environment's steps."""
    anneal: bool = True
    """Let the learning rate fall linearly to zero over the run."""
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_value: bool = False
    """Clip the change of the value, too."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.minibatches < 1 or self.horizon % self.minibatches:
            wrong = f"horizon {self.horizon} does not divide into {self.minibatches} minibatches"
            raise ConfigError(f"{wrong}: choose a horizon that is a multiple of minibatches")

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        world, trajectory, log_prob = self.collect(env, state.learner.params, state.world, act_keys)
        learner, losses = self.learn(env, state.learner, trajectory, log_prob, learn_keys)
        finished = all_sum(jax.tree.map(jnp.sum, world.finished))
        return State(world, learner, keys), {**finished._asdict(), **losses}

    @stage
    def learn(
        self, env: Environment, learner: Learner, trajectory: Transition, log_prob: jax.Array, keys: jax.Array
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """Improve policy and value on one iteration's steps."""
        value = self.value(learner.params, trajectory.observation)
        next_value = next_values(partial(self.value, learner.params), value, trajectory, env.shortest_cut)
        advantage = generalized_advantage(trajectory, value, next_value, self.gamma, self.gae_lambda)
        samples = Sample(trajectory.observation, trajectory.action, log_prob, advantage, value)

        def epoch(learner: Learner, index: jax.Array) -> tuple[Learner, dict[str, jax.Array]]:
            return jax.lax.scan(
                minibatch, learner, rows_of_minibatches(fold_each(keys, index), self.horizon, self.minibatches)
            )

        def minibatch(learner: Learner, rows: jax.Array) -> tuple[Learner, dict[str, jax.Array]]:
            batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[rows], samples)
            gradients, losses = self.gradient(env, learner.params, batch)
            return self.apply(learner, gradients), losses

        learner, losses = jax.lax.scan(epoch, learner, jnp.arange(self.epochs))
        return learner, jax.tree.map(jnp.mean, losses)

    @stage
    def gradient(self, env: Environment, params: Any, batch: Sample) -> tuple[Any, dict[str, jax.Array]]:
        """The gradient of the loss on one minibatch."""
        mean, square = all_mean((jnp.mean(batch.advantage), jnp.mean(batch.advantage**2)))
        advantage = (batch.advantage - mean) / (jnp.sqrt(jnp.maximum(square - mean**2, 0.0)) + 1e-8)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            policy = self.policy(env, params, batch.observation)
            log_ratio = policy.log_prob(batch.action) - batch.log_prob
            ratio = jnp.exp(log_ratio)
            clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
            policy_loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
            value, target = self.value(params, batch.observation), batch.advantage + batch.value
            error = (value - target) ** 2
            if self.clip_value:
                near = batch.value + jnp.clip(value - batch.value, -self.clip, self.clip)
                error = jnp.maximum(error, (near - target) ** 2)
            value_loss = 0.5 * jnp.mean(error)
            entropy = jnp.mean(policy.entropy())
            losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
            losses["kl"] = jnp.mean(ratio - 1 - log_ratio)
            return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, losses

        gradients, losses = jax.grad(loss, has_aux=True)(params)
        return all_mean(gradients), all_mean(losses)

    def optimizer(self) -> optax.GradientTransformation:
        updates = -(-self.total_steps // self.steps_per_iteration) * self.epochs * self.minibatches
        rate = optax.linear_schedule(self.learning_rate, 0.0, updates) if self.anneal else self.learning_rate
        return clipped_adam(rate, self.max_grad_norm)
