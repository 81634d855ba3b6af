"""Twin delayed deep deterministic policy gradients (Fujimoto et al., 2018), and DDPG (Lillicrap et al., 2016)."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_replay import CRITICS, noise_each, of_critics
from fragmenta.algorithms.critics import ContinuousCritics
from fragmenta.algorithms.limits import COUNT, NOT_NEGATIVE, Limit
from fragmenta.algorithms.off_policy import OffPolicyState, TargetLearner
from fragmenta.envs import Environment
from fragmenta.rl.replay import Batch
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class TD3(ContinuousCritics):
    """A deterministic actor with noise; two critics, smoothed targets, and fewer updates of the actor."""

    limits: ClassVar[dict[str, Limit]] = {
        "exploration_noise": NOT_NEGATIVE,
        "largest_noise": NOT_NEGATIVE,
        "target_noise": NOT_NEGATIVE,
        "target_noise_clip": NOT_NEGATIVE,
        "policy_delay": COUNT,
    }

    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions, where actions are between -1 and 1."""
    largest_noise: float = 0.0
    """If larger than that, every environment has noise of its own: from exploration_noise in the first to this one."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the actions of targets."""
    target_noise_clip: float = 0.5
    """The largest noise on the actions of targets."""
    policy_delay: int = 2
    """Updates of the critics for one of the actor."""

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        return self.init_networks(env, key, observation, 1)

    @stage
    def act(self, env: Environment, params: Any, observation: Any, keys: jax.Array, explore: Any) -> jax.Array:
        """The actor's action with noise, or a random one before learning starts."""
        steps, deviation = explore
        best = self.best(env, params, observation)

        def with_noise(key: jax.Array, best: jax.Array, deviation: jax.Array) -> jax.Array:
            noise_key, random_key = jax.random.split(key)
            noisy = jnp.clip(best + deviation * jax.random.normal(noise_key, best.shape), -1.0, 1.0)
            random = jax.random.uniform(random_key, best.shape, minval=-1.0, maxval=1.0)
            return jnp.where(steps < self.learning_starts, random, noisy)

        return self.to_env(env, jax.vmap(with_noise)(keys, best, deviation))

    def exploring(self, state: OffPolicyState, steps: jax.Array) -> Any:
        """The steps so far, and the standard deviation of the noise in each environment."""
        share = state.env_index / jnp.maximum(1, state.envs - 1)
        return steps, self.exploration_noise + share * jnp.maximum(self.largest_noise - self.exploration_noise, 0.0)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        if keys is not None:
            explore = jnp.asarray(jnp.inf), jnp.full(keys.shape, self.exploration_noise)
            return self.act(env, self.acting(params), observation, keys, explore), memory
        return self.to_env(env, self.best(env, params, observation)), memory

    @stage
    def gradient(self, env: Environment, learner: TargetLearner, batch: Batch, keys: jax.Array) -> tuple[Any, Any]:
        """The gradients of critics and actor on a batch, the error of every step, and the losses."""
        params, target = learner.params, learner.target
        # Some variants have no slow copy of the actor.
        next_action = self.best(env, {**params, **target}, batch.next_observation)
        noise = self.target_noise * noise_each(keys, next_action.shape)
        noise = jnp.clip(noise, -self.target_noise_clip, self.target_noise_clip)
        next_action = jnp.clip(next_action + noise, -1.0, 1.0)
        following = self.combined_outputs(env, target, batch.next_observation, next_action)

        def critic_loss(critic: Any) -> tuple[jax.Array, Any]:
            return self.critic_loss(env, critic, batch, batch.reward, following)

        def actor_loss(actor: Any) -> jax.Array:
            best = self.best(env, {**params, "actor": actor}, batch.observation)
            return -jnp.mean(self.actor_value(env, params, batch.observation, best))

        (loss, (value, error)), critic = jax.value_and_grad(critic_loss, has_aux=True)(of_critics(params))
        policy_loss, actor = self._when_due(learner.updates + 1, actor_loss, params["actor"])
        losses = {"value_loss": loss, "policy_loss": policy_loss, "value": value}
        return {"actor": actor, **critic}, (error, losses)

    def _when_due(self, update: jax.Array, loss: Callable[[Any], jax.Array], actor: Any) -> tuple[jax.Array, Any]:
        """The loss of the actor and, in the updates that change it, its gradient."""
        if self.policy_delay == 1:
            return jax.value_and_grad(loss)(actor)

        def only_loss(actor: Any) -> tuple[jax.Array, Any]:
            return loss(actor), jax.tree.map(jnp.zeros_like, actor)

        return jax.lax.cond(update % self.policy_delay == 0, jax.value_and_grad(loss), only_loss, actor)

    def actor_value(self, env: Environment, params: Any, observation: Any, action: jax.Array) -> jax.Array:
        """The value that the actor makes as high as it can."""
        return self.critic_values(env, params, observation, action)[0]

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


@dataclasses.dataclass(frozen=True)
class FastTD3(TD3):
    """TD3 for thousands of environments (Seo et al., 2025): large batches, critics of the distribution of the return,
    standardised observations, and noise of its own in every environment."""

    targets: ClassVar[tuple[str, ...]] = CRITICS

    num_envs: int = 1024
    total_steps: int = 100_000_000
    updates: int = 2
    gamma: float = 0.97
    learning_rate: float = 3e-4
    optimizer: Any = "adamw"
    hidden: tuple[int, ...] = (512, 256, 128)
    critic_hidden: tuple[int, ...] = (1024, 512, 256)
    batch_size: int = 32_768
    buffer_size: int = 10_485_760
    learning_starts: int = 10_240
    tau: float = 0.1
    distribution: str = "c51"
    atoms: int = 101
    value_range: tuple[float, float] = (-10.0, 10.0)
    normalize_observations: bool = True
    exploration_noise: float = 0.001
    largest_noise: float = 0.4
    target_noise: float = 0.001

    def actor_value(self, env: Environment, params: Any, observation: Any, action: jax.Array) -> jax.Array:
        return self.combined_value(env, params, observation, action)
