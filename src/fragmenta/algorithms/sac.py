"""Soft actor-critic (Haarnoja et al., 2018) with automatic temperature."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_replay import CRITICS, noise_each, of_critics
from fragmenta.algorithms.critics import ContinuousCritics
from fragmenta.algorithms.limits import POSITIVE, Limit
from fragmenta.algorithms.off_policy import TargetLearner
from fragmenta.envs import Environment
from fragmenta.rl.replay import Batch
from fragmenta.stage import stage

LOG_STD = (-5.0, 2.0)
"""The range of the logarithm of the actor's standard deviation."""


@dataclasses.dataclass(frozen=True)
class SAC(ContinuousCritics):
    """A stochastic actor that is rewarded for its entropy; the weight of the entropy is learned."""

    targets: ClassVar[tuple[str, ...]] = CRITICS
    limits: ClassVar[dict[str, Limit]] = {"temperature": POSITIVE}
    used_if: ClassVar[dict[str, dict[str, Any]]] = {"temperature": {"learn_temperature": False}}

    temperature: float = 1.0
    """Weight of the entropy, at first if it is learned."""
    learn_temperature: bool = True
    """Adapt the temperature so that the entropy stays at minus the number of an action's entries."""

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        temperature = jnp.log(jnp.asarray(self.temperature, jnp.float32))
        return {**self.init_networks(env, key, observation, 2), "log_temperature": temperature}

    @stage
    def act(self, env: Environment, params: Any, observation: Any, keys: jax.Array, steps: jax.Array) -> jax.Array:
        """An action of the actor, or a random one before learning starts."""
        mean, log_std = self._normal(env, params, observation)

        def draw(key: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
            noise_key, random_key = jax.random.split(key)
            action = jnp.tanh(mean + jnp.exp(log_std) * jax.random.normal(noise_key, mean.shape))
            random = jax.random.uniform(random_key, mean.shape, minval=-1.0, maxval=1.0)
            return jnp.where(steps < self.learning_starts, random, action)

        return self.to_env(env, jax.vmap(draw)(keys, mean, log_std))

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        if keys is not None:
            return self.act(env, self.acting(params), observation, keys, jnp.asarray(jnp.inf)), memory
        mean, _ = self._normal(env, params, observation)
        return self.to_env(env, jnp.tanh(mean)), memory

    @stage
    def gradient(self, env: Environment, learner: TargetLearner, batch: Batch, keys: jax.Array) -> tuple[Any, Any]:
        """The gradients of critics, actor and temperature on a batch, the error of every step, and the losses."""
        params, target = learner.params, learner.target
        observation, next_observation = batch.observation, batch.next_observation
        shape = (*batch.reward.shape, self.action_size(env))
        noise = noise_each(keys, (2 * shape[0], *shape[1:]))
        now, later = noise[: shape[0]], noise[shape[0] :]
        temperature = jnp.exp(params["log_temperature"]) if self.learn_temperature else jnp.asarray(self.temperature)
        next_action, next_log_prob = self._sample(env, params, next_observation, later)
        following = self.combined_outputs(env, target, next_observation, next_action)
        reward = batch.reward - batch.discount * temperature * next_log_prob

        def critic_loss(critic: Any) -> tuple[jax.Array, Any]:
            return self.critic_loss(env, critic, batch, reward, following)

        def actor_loss(actor: Any) -> tuple[jax.Array, jax.Array]:
            action, log_prob = self._sample(env, {**params, "actor": actor}, observation, now)
            value = self.combined_value(env, params, observation, action)
            return jnp.mean(temperature * log_prob - value), jnp.mean(log_prob)

        (loss, (value, error)), critic = jax.value_and_grad(critic_loss, has_aux=True)(of_critics(params))
        (policy_loss, log_prob), actor = jax.value_and_grad(actor_loss, has_aux=True)(params["actor"])
        gradients = {"actor": actor, **critic}
        if self.learn_temperature:
            gradients["log_temperature"] = -(log_prob - self.action_size(env))
        losses = {"value_loss": loss, "policy_loss": policy_loss, "value": value, "entropy": -log_prob}
        return gradients, (error, losses | {"temperature": temperature})

    def _sample(self, env: Environment, params: Any, observation: Any, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions between -1 and 1, and their log-densities."""
        mean, log_std = self._normal(env, params, observation)
        before = mean + jnp.exp(log_std) * noise
        log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
        # The logarithm of the derivative of tanh, in a form that does not overflow.
        log_prob = log_prob - 2.0 * (jnp.log(2.0) - before - jax.nn.softplus(-2.0 * before))
        return jnp.tanh(before), jnp.sum(log_prob, axis=-1)

    def _normal(self, env: Environment, params: Any, observation: Any) -> tuple[jax.Array, jax.Array]:
        mean, spread = jnp.split(self.actor_outputs(env, params, observation, 2), 2, axis=-1)
        low, high = LOG_STD
        return mean, low + 0.5 * (high - low) * (jnp.tanh(spread) + 1.0)
