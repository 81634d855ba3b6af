"""Proximal policy optimization (Schulman et al., 2017), for discrete and continuous actions."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_critic import ActorCritic, State
from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.limits import COUNT, FRACTION, POSITIVE, Limit
from fragmenta.algorithms.neural import Learner
from fragmenta.envs import Environment, Transition
from fragmenta.errors import ConfigError
from fragmenta.rl import (
    ValueFit,
    explained_variance,
    fold_each,
    generalized_advantage,
    normalize_advantage,
    split_each,
    steps_of_chunks,
    steps_of_minibatches,
    take_steps,
    value_fit,
)
from fragmenta.stage import stage


class Sample(NamedTuple):
    """The parts of a step that the loss needs."""

    observation: Any
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    value: jax.Array


@dataclasses.dataclass(frozen=True)
class PPO(ActorCritic):
    """Clipped policy updates over a few epochs of minibatches, drawn per environment."""

    allows_lag: ClassVar[bool] = True  # the ratio in the loss is to the policy that acted

    without_memory: ClassVar[str] = ""
    in_chunks: ClassVar[bool] = True

    limits: ClassVar[dict[str, Limit]] = {
        "epochs": COUNT,
        "minibatches": COUNT,
        "gae_lambda": FRACTION,
        "clip": POSITIVE,
    }

    epochs: int = 4
    """Passes over each iteration's steps."""
    minibatches: int = 8
    """Minibatches per pass; each holds a slice of every environment's steps."""
    gae_lambda: float = 0.95
    """How far advantages look ahead: 0 is one step, 1 the whole episode."""
    clip: float = 0.2
    """How far an update may move the probability of an action: 0.2 is by a factor of 0.8 to 1.2."""
    clip_value: bool = False
    """Also clip the change of the value."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.horizon % self.minibatches:
            problem = f"horizon {self.horizon} does not divide into {self.minibatches} minibatches"
            raise ConfigError(f"{problem}: choose a horizon that is a multiple of minibatches")

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        state, trajectory, log_prob = self.experience(env, state, act_keys)
        learner, losses = self.learn(env, state.learner, trajectory, log_prob, learn_keys)
        return state._replace(learner=learner, keys=keys), losses

    @stage
    def learn(
        self, env: Environment, learner: Learner, trajectory: Transition, acted: Any, keys: jax.Array
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """Update policy and value on one iteration's steps; `acted` is what acting recorded for them."""
        samples = self.samples(env, learner.params, trajectory, acted)

        def epoch(learner: Learner, index: jax.Array) -> tuple[Learner, Any]:
            return jax.lax.scan(minibatch, learner, self.minibatch_steps(fold_each(keys, index)))

        def minibatch(learner: Learner, steps: jax.Array) -> tuple[Learner, Any]:
            gradients, aux = self.gradient(env, learner.params, take_steps(samples, steps))
            return self.apply(learner, gradients), aux

        learner, aux = jax.lax.scan(epoch, learner, jnp.arange(self.epochs))
        losses, fit = jax.tree.map(jnp.mean, aux)
        return learner, {**losses, "explained_variance": explained_variance(fit)}

    def samples(self, env: Environment, params: Any, trajectory: Transition, acted: Any) -> Sample:
        """Steps with their advantages; `acted` is the log-probability of their actions."""
        value, next_value = self.values_along(env, params, trajectory)
        advantage = generalized_advantage(trajectory, value, next_value, self.gamma, self.gae_lambda)
        return Sample(trajectory.observation, trajectory.action, acted, advantage, value)

    def minibatch_steps(self, keys: jax.Array) -> jax.Array:
        """The steps of every environment in each minibatch of an epoch: in order and without gaps, if remembered."""
        steps_of = steps_of_chunks if self.remembers else steps_of_minibatches
        return steps_of(keys, self.horizon, self.minibatches)

    def minibatch_features(self, env: Environment, params: Any, batch: Sample) -> Encoded:
        """The network inputs for the steps of a minibatch."""
        return self.encode_all(env, params, batch.observation)

    @stage
    def gradient(self, env: Environment, params: Any, batch: Sample) -> tuple[Any, tuple[Any, ValueFit]]:
        """The gradient of the loss on one minibatch, the losses, and the value fit before the update."""
        advantage = normalize_advantage(batch.advantage)

        def loss(params: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            encoded = self.minibatch_features(env, params, batch)
            policy = self.policy(env, params, encoded)
            log_ratio = policy.log_prob(batch.action) - batch.log_prob
            ratio = jnp.exp(log_ratio)
            clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
            policy_loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
            value, target = self.value(params, encoded), batch.advantage + batch.value
            error = (value - target) ** 2
            if self.clip_value:
                clipped_value = batch.value + jnp.clip(value - batch.value, -self.clip, self.clip)
                error = jnp.maximum(error, (clipped_value - target) ** 2)
            value_loss = 0.5 * jnp.mean(error)
            entropy = jnp.mean(policy.entropy())
            losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
            losses["kl"] = jnp.mean(ratio - 1 - log_ratio)
            return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, losses

        gradients, losses = jax.grad(loss, has_aux=True)(params)
        return gradients, (losses, value_fit(batch.advantage + batch.value, batch.advantage))

    @property
    def updates_per_iteration(self) -> int:
        return self.epochs * self.minibatches
