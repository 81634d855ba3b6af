"""Soft actor-critic for discrete actions (Christodoulou, 2019)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_replay import CRITICS, ActorReplay, of_critics
from fragmenta.algorithms.limits import FRACTION, POSITIVE, Limit
from fragmenta.algorithms.off_policy import TargetLearner
from fragmenta.algorithms.standardizing import Standardizing
from fragmenta.envs import Box, Discrete, Environment
from fragmenta.errors import ConfigError
from fragmenta.rl import Categorical
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.replay import Batch
from fragmenta.rl.value_targets import of_action
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class DiscreteSAC(ActorReplay, Standardizing):
    """A stochastic actor that is rewarded for its entropy; expectations over actions are exact."""

    targets: ClassVar[tuple[str, ...]] = CRITICS
    limits: ClassVar[dict[str, Limit]] = {"temperature": POSITIVE, "entropy_share": FRACTION}
    used_if: ClassVar[dict[str, dict[str, Any]]] = {
        "temperature": {"learn_temperature": False},
        "entropy_share": {"learn_temperature": True},
    }

    total_steps: int = 500_000
    horizon: int = 4
    updates: int = 2
    learning_rate: float = 1e-3
    hidden: tuple[int, ...] = (128, 128)
    buffer_size: int = 100_000
    n_step: int = 3
    temperature: float = 0.2
    """Weight of the entropy, at first if it is learned."""
    learn_temperature: bool = True
    """Adapt the temperature so that the entropy stays at `entropy_share`."""
    entropy_share: float = 0.1
    """The entropy aimed at, as a share of that of random actions."""

    def check_actions(self, env: Environment) -> None:
        """Raise ConfigError unless the actions are discrete."""
        if not isinstance(env.action_space, Discrete):
            problem = f"DiscreteSAC does not support action space {env.action_space}"
            raise ConfigError(
                f"{problem}: it takes Discrete; use {'sac' if isinstance(env.action_space, Box) else 'ppo'}"
            )

    def action_size(self, env: Environment) -> int:
        """How many actions there are."""
        assert isinstance(env.action_space, Discrete)
        return env.action_space.n

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        params, encoded = self.init_encoder(env, key, observation)
        actor_key, critic_key = jax.random.split(key)
        actor = self.actor_net(self.action_size(env)).init(actor_key, encoded.actor)
        critic = self.critic_net(self.action_size(env)).init(critic_key, encoded.critic)
        temperature = jnp.log(jnp.asarray(self.temperature, jnp.float32))
        return {**params, "actor": actor, "critic": critic, "log_temperature": temperature}

    @stage
    def act(self, env: Environment, params: Any, observation: Any, keys: jax.Array, steps: jax.Array) -> jax.Array:
        """An action of the actor, or a random one before learning starts."""
        policy = self.policy(env, params, observation)
        legal = self.encode(env, params, observation).legal
        random = Categorical(masked_logits(jnp.zeros_like(policy.logits), legal))
        logits = jnp.where(steps < self.learning_starts, random.logits, policy.logits)
        return Categorical(logits).sample(keys).astype(jnp.int32)

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        policy = self.policy(env, self.acting(params), observation)
        return policy.mode() if keys is None else policy.sample(keys).astype(jnp.int32), memory

    def policy(self, env: Environment, params: Any, observation: Any) -> Categorical:
        """The distribution over actions."""
        legal = self.encode(env, params, observation).legal
        return Categorical(masked_logits(self.actor_outputs(env, params, observation, 1), legal))

    def action_values(self, env: Environment, params: Any, observation: Any) -> jax.Array:
        """The values of all actions by each critic, on the first axis; `params` are those of the critics."""
        encoded = self.encode(env, params, observation)
        values: Any = self.critic_net(self.action_size(env)).apply(params["critic"], encoded.critic)
        return values

    @stage
    def gradient(self, env: Environment, learner: TargetLearner, batch: Batch, keys: jax.Array) -> tuple[Any, Any]:
        """The gradients of critics, actor and temperature on a batch, the error of every step, and the losses."""
        params, target = learner.params, learner.target
        temperature = jnp.exp(params["log_temperature"]) if self.learn_temperature else jnp.asarray(self.temperature)
        next_policy = self.policy(env, params, batch.next_observation)
        next_values = jnp.min(self.action_values(env, target, batch.next_observation), axis=0)
        next_value = _expected(next_policy, next_values) + temperature * next_policy.entropy()
        goal = batch.reward + batch.discount * next_value

        def critic_loss(critic: Any) -> tuple[jax.Array, Any]:
            values = self.action_values(env, critic, batch.observation)
            value = of_action(values, batch.action[None])
            error = value - goal
            loss = 0.5 * jnp.mean(batch.weight * jnp.sum(error**2, axis=0))
            return loss, (jnp.mean(value), jnp.mean(error, axis=0), jnp.min(values, axis=0))

        (loss, (value, error, values)), critic = jax.value_and_grad(critic_loss, has_aux=True)(of_critics(params))

        def actor_loss(actor: Any) -> tuple[jax.Array, jax.Array]:
            policy = self.policy(env, {**params, "actor": actor}, batch.observation)
            entropy = policy.entropy()
            return -jnp.mean(_expected(policy, values) + temperature * entropy), jnp.mean(entropy)

        (policy_loss, entropy), actor = jax.value_and_grad(actor_loss, has_aux=True)(params["actor"])
        gradients = {"actor": actor, **critic}
        if self.learn_temperature:
            legal = self.encode(env, params, batch.observation).legal
            choices = self.action_size(env) if legal is None else jnp.maximum(jnp.sum(legal > 0, axis=-1), 1)
            gradients["log_temperature"] = entropy - self.entropy_share * jnp.mean(jnp.log(choices))
        losses = {"value_loss": loss, "policy_loss": policy_loss, "value": value, "entropy": entropy}
        return gradients, (error, losses | {"temperature": temperature})


def _expected(policy: Categorical, values: jax.Array) -> jax.Array:
    return jnp.sum(jax.nn.softmax(policy.logits) * values, axis=-1)
