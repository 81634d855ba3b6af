"""Twin delayed deep deterministic policy gradients (Fujimoto et al., 2018), and DDPG (Lillicrap et al., 2016)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_replay import ActorReplay, noise_each, of_critics
from fragmenta.algorithms.limits import COUNT, NOT_NEGATIVE, Limit
from fragmenta.algorithms.off_policy import TargetLearner
from fragmenta.envs import Environment
from fragmenta.rl.replay import Batch
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class TD3(ActorReplay):
    """A deterministic actor with noise; two critics, smoothed targets, and fewer updates of the actor."""

    limits: ClassVar[dict[str, Limit]] = {
        "exploration_noise": NOT_NEGATIVE,
        "target_noise": NOT_NEGATIVE,
        "target_noise_clip": NOT_NEGATIVE,
        "policy_delay": COUNT,
    }

    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions, where actions are between -1 and 1."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the actions of targets."""
    target_noise_clip: float = 0.5
    """The largest noise on the actions of targets."""
    policy_delay: int = 2
    """Updates of the critics for one of the actor."""

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        return self.init_networks(env, key, observation, 1)

    @stage
    def act(self, env: Environment, params: Any, observation: Any, keys: jax.Array, steps: jax.Array) -> jax.Array:
        """The actor's action with noise, or a random one before learning starts."""
        best = self.best(env, params, observation)

        def explore(key: jax.Array, best: jax.Array) -> jax.Array:
            noise_key, random_key = jax.random.split(key)
            noisy = jnp.clip(best + self.exploration_noise * jax.random.normal(noise_key, best.shape), -1.0, 1.0)
            random = jax.random.uniform(random_key, best.shape, minval=-1.0, maxval=1.0)
            return jnp.where(steps < self.learning_starts, random, noisy)

        return self.to_env(env, jax.vmap(explore)(keys, best))

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        if keys is not None:
            return self.act(env, self.acting(params), observation, keys, jnp.asarray(self.total_steps)), memory
        return self.to_env(env, self.best(env, params, observation)), memory

    @stage
    def gradient(self, env: Environment, learner: TargetLearner, batch: Batch, keys: jax.Array) -> tuple[Any, Any]:
        """The gradients of critics and actor on a batch, the error of every step, and the losses."""
        params, target = learner.params, learner.target
        observation, action = batch.observation, self.from_env(env, batch.action)
        next_action = self.best(env, target, batch.next_observation)
        noise = self.target_noise * noise_each(keys, next_action.shape)
        noise = jnp.clip(noise, -self.target_noise_clip, self.target_noise_clip)
        next_action = jnp.clip(next_action + noise, -1.0, 1.0)
        next_value = jnp.min(self.critic_values(env, target, batch.next_observation, next_action), axis=0)
        goal = batch.reward + batch.discount * next_value

        def critic_loss(critic: Any) -> tuple[jax.Array, Any]:
            values = self.critic_values(env, critic, observation, action)
            error = values - goal
            return jnp.mean(batch.weight * jnp.sum(error**2, axis=0)), (jnp.mean(values), jnp.mean(error, axis=0))

        def actor_loss(actor: Any) -> jax.Array:
            best = self.best(env, {**params, "actor": actor}, observation)
            return -jnp.mean(self.critic_values(env, params, observation, best)[0])

        (loss, (value, error)), critic = jax.value_and_grad(critic_loss, has_aux=True)(of_critics(params))
        policy_loss, actor = jax.value_and_grad(actor_loss)(params["actor"])
        losses = {"value_loss": loss, "policy_loss": policy_loss, "value": value}
        return {"actor": actor, **critic}, (error, losses)

    def best(self, env: Environment, params: Any, observation: Any) -> jax.Array:
        """The actor's action, between -1 and 1."""
        return jnp.tanh(self.actor_outputs(env, params, observation, 1))

    def period(self, name: str) -> int:
        return self.policy_delay if name == "actor" else 1


@dataclasses.dataclass(frozen=True)
class DDPG(TD3):
    """One critic, plain targets, and as many updates of the actor as of the critic."""

    critics: int = 1
    target_noise: float = 0.0
    policy_delay: int = 1
