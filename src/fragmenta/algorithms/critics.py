"""Shared by SAC, TD3 and DDPG: critics of continuous actions, of the mean of the return or of its distribution."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_replay import ActorReplay
from fragmenta.algorithms.distributional import Distributional
from fragmenta.algorithms.standardizing import Standardizing
from fragmenta.envs import Environment
from fragmenta.errors import ConfigError
from fragmenta.rl.replay import Batch

COMBINATIONS = ("lowest", "mean")


@dataclasses.dataclass(frozen=True)
class ContinuousCritics(ActorReplay, Standardizing, Distributional):
    """An actor of continuous actions, and critics whose targets combine what all of them say."""

    value_range: tuple[float, float] = (-100.0, 100.0)
    critics: int = 2
    """Independent critics, of which `combine` makes one for targets."""
    combine: str = "lowest"
    """How targets combine the critics: lowest (the one of the lowest value), which never overestimates, or mean."""

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.combine not in COMBINATIONS:
            raise ConfigError(f"combine is '{self.combine}': choose {' or '.join(COMBINATIONS)}")

    def init_networks(self, env: Environment, key: jax.Array, observation: Any, actor_outputs: int) -> dict[str, Any]:
        """Encoders, critics, and an actor with that many outputs for each entry of an action."""
        params, encoded = self.init_encoder(env, key, observation)
        size = self.action_size(env)
        actor_key, critic_key = jax.random.split(key)
        both = jnp.concatenate([encoded.critic, jnp.zeros((*encoded.critic.shape[:-1], size))], axis=-1)
        actor = self.actor_net(actor_outputs * size).init(actor_key, encoded.actor)
        return {**params, "actor": actor, "critic": self.critic_net(self.return_form.size).init(critic_key, both)}

    def critic_values(self, env: Environment, params: Any, observation: Any, action: jax.Array) -> jax.Array:
        """The values of actions by each critic, on the first axis; `params` are those of the critics."""
        return self.return_form.mean(self.critic_outputs(env, params, observation, action))

    def critic_outputs(self, env: Environment, params: Any, observation: Any, action: jax.Array) -> Any:
        """What each critic says about actions: a mean, logits of atoms, or quantiles, on the last axis."""
        features = self.encode(env, params, observation).critic
        both = jnp.concatenate([features, action], axis=-1)
        return self.critic_net(self.return_form.size).apply(params["critic"], both)

    def combined_outputs(self, env: Environment, params: Any, observation: Any, action: jax.Array) -> jax.Array:
        """What all critics say about actions, as one."""
        outputs = self.critic_outputs(env, params, observation, action)
        return self.return_form.average(outputs) if self.combine == "mean" else self.return_form.lowest(outputs)

    def combined_value(self, env: Environment, params: Any, observation: Any, action: jax.Array) -> jax.Array:
        """The values of actions by all critics, as one."""
        values = self.critic_values(env, params, observation, action)
        return jnp.mean(values, axis=0) if self.combine == "mean" else jnp.min(values, axis=0)

    def critic_loss(
        self, env: Environment, params: Any, batch: Batch, reward: jax.Array, following: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """The loss of the critics with these rewards and outputs of the targets, the mean value, and the error of every
        step; `params` are those of the critics."""
        outputs = self.critic_outputs(env, params, batch.observation, self.from_env(env, batch.action))
        each, error = self.return_form.errors(outputs, following, reward, batch.discount)
        loss = jnp.mean(batch.weight * jnp.sum(each, axis=0))
        return loss, (jnp.mean(self.return_form.mean(outputs)), jnp.mean(error, axis=0))
