"""Multi-agent deterministic policy gradients (Lowe et al., 2017): critics that see everything, actors that do not."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fragmenta.algorithms.actor_replay import ActorReplay, of_critics
from fragmenta.algorithms.encoding import Encoded
from fragmenta.algorithms.limits import NOT_NEGATIVE, POSITIVE, Limit
from fragmenta.algorithms.off_policy import TargetLearner
from fragmenta.algorithms.team import NO_MEMORY, TeamNetworks
from fragmenta.envs import Box, Discrete, Environment, World
from fragmenta.rl import split_each
from fragmenta.rl.masks import masked_logits
from fragmenta.rl.replay import Batch
from fragmenta.rl.teams import TeamView, beside_joint, joint, keys_of_agents, mask_absent, mean_present
from fragmenta.stage import stage


@dataclasses.dataclass(frozen=True)
class MADDPG(ActorReplay, TeamNetworks):
    """An actor per agent on its own observation; a critic per agent of the observations and actions of all agents.

    Each agent learns from its own rewards. Discrete actions are drawn by the Gumbel-softmax trick, with the gradient
    of the soft choice; continuous ones are deterministic, with noise.
    """

    without_memory: ClassVar[str] = NO_MEMORY

    limits: ClassVar[dict[str, Limit]] = {
        "exploration_noise": NOT_NEGATIVE,
        "softness": POSITIVE,
        "logit_cost": NOT_NEGATIVE,
    }

    num_envs: int = 16
    total_steps: int = 1_000_000
    shared: bool = False
    horizon: int = 4
    updates: int = 2
    gamma: float = 0.95
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (128, 128)
    batch_size: int = 512
    buffer_size: int = 200_000
    tau: float = 0.01
    critics: int = 1
    """Independent critics of each agent; targets take the lowest of their values."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on continuous actions, where actions are between -1 and 1."""
    softness: float = 1.0
    """Temperature of the soft choice whose gradient discrete actions have."""
    logit_cost: float = 1e-3
    """Weight of the squared logits of discrete actions, which keeps the policy exploring."""

    @property
    def action_kinds(self) -> str:
        return "discrete or continuous"

    def takes_actions(self, env: Environment) -> bool:
        return isinstance(env.action_space, Discrete | Box)

    def check_actions(self, env: Environment) -> None:
        if not isinstance(env.action_space, Discrete):
            super().check_actions(env)

    def action_size(self, env: Environment) -> int:
        return env.action_space.n if isinstance(env.action_space, Discrete) else super().action_size(env)

    def init_params(self, env: Environment, key: jax.Array, observation: Any) -> dict[str, Any]:
        assert env.team_size is not None
        encoded = jax.eval_shape(lambda: self.init_agent(env, key, observation)[1])
        size, everything = self.action_size(env), env.team_size * encoded.critic.shape[-1]

        def init(net: Any, width: int, key: jax.Array) -> Any:
            return self.init_each(env, lambda key: net.init(key, self.empty_inputs(env, width)), key)

        actor_key, critic_key = jax.random.split(key)
        params = self.init_each(env, lambda key: self.init_agent(env, key, observation)[0], key)
        params["actor"] = init(self.actor_net(size), encoded.actor.shape[-1], actor_key)
        params["critic"] = init(self.critic_net(1), everything + env.team_size * size, critic_key)
        return params

    def view(self, world: World) -> TeamView:
        return TeamView(world.observation, world.alive)

    @stage
    def act(self, env: Environment, params: Any, observation: TeamView, keys: jax.Array, steps: jax.Array) -> jax.Array:
        """A sampled discrete action or a continuous one with noise, or a random one before learning starts."""
        encoded, is_early = self.encode_each(env, params, observation), steps < self.learning_starts
        outputs = self.outputs(env, params["actor"], encoded)
        each = keys_of_agents(keys, env.num_agents)
        if isinstance(env.action_space, Discrete):
            logits = masked_logits(jnp.where(is_early, 0.0, outputs), encoded.legal)
            return jax.vmap(jax.vmap(jax.random.categorical))(each, logits).astype(jnp.int32)

        def explore(key: jax.Array, best: jax.Array) -> jax.Array:
            noise_key, random_key = jax.random.split(key)
            noisy = jnp.clip(best + self.exploration_noise * jax.random.normal(noise_key, best.shape), -1.0, 1.0)
            random = jax.random.uniform(random_key, best.shape, minval=-1.0, maxval=1.0)
            return jnp.where(is_early, random, noisy)

        return self.to_env(env, jax.vmap(jax.vmap(explore))(each, jnp.tanh(outputs)))

    def decide(
        self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: jax.Array | None
    ) -> tuple[Any, Any]:
        params, view = self.acting(params), TeamView(observation, alive)
        if keys is not None:
            return self.act(env, params, view, keys, jnp.asarray(jnp.inf)), memory
        outputs = self.outputs(env, params["actor"], self.encode_each(env, params, view))
        if isinstance(env.action_space, Discrete):
            return jnp.argmax(outputs, axis=-1).astype(jnp.int32), memory
        return self.to_env(env, jnp.tanh(outputs)), memory

    @stage
    def gradient(self, env: Environment, learner: TargetLearner, batch: Batch, keys: jax.Array) -> tuple[Any, Any]:
        """The gradients of critics and actors on a batch, the error of every step, and the losses."""
        params, target, alive, next_alive = learner.params, learner.target, batch.alive, batch.next_alive
        view, next_view = TeamView(batch.observation, alive), TeamView(batch.next_observation, next_alive)
        encoded, next_encoded = self.encode_each(env, params, view), self.encode_each(env, target, next_view)
        next_keys, actor_keys = split_each(keys)
        next_action = self.chosen(env, self.outputs(env, target["actor"], next_encoded), next_alive, next_keys)
        next_values = self.critic_of(env, target["critic"], next_encoded, _for_critics(next_action))
        # An agent that drops out gets no further reward.
        next_value = mask_absent(next_alive, jnp.min(next_values, axis=0))
        goal = batch.reward + batch.discount[..., None] * next_value
        action = self.encoded(env, batch.action, alive)

        def critic_loss(critics: Any) -> tuple[jax.Array, Any]:
            values = self.critic_of(env, critics["critic"], self.encode_each(env, critics, view), _for_critics(action))
            error = mask_absent(alive, jnp.mean(jnp.abs(values - goal), axis=0))
            total = mean_present(alive, batch.weight[..., None] * jnp.sum((values - goal) ** 2, axis=0))
            return total, (mean_present(alive, values[0]), jnp.mean(error, axis=-1))

        def actor_loss(actor: Any) -> jax.Array:
            outputs = self.outputs(env, actor, encoded)
            fresh = self.chosen(env, outputs, alive, actor_keys)
            values = self.critic_of(env, params["critic"], encoded, _for_critics(action, fresh))[0]
            if not isinstance(env.action_space, Discrete):
                return -mean_present(alive, values)
            legal = jnp.where(outputs > -1e8, outputs, 0.0)
            return -mean_present(alive, values) + self.logit_cost * mean_present(alive, jnp.mean(legal**2, axis=-1))

        (loss, (value, error)), critics = jax.value_and_grad(critic_loss, has_aux=True)(of_critics(params))
        policy_loss, actor = jax.value_and_grad(actor_loss)(params["actor"])
        losses = {"value_loss": loss, "policy_loss": policy_loss, "value": value}
        return {"actor": actor, **critics}, (error, losses)

    def outputs(self, env: Environment, actor: Any, encoded: Encoded) -> jax.Array:
        """The logits of every agent's legal actions, or its continuous action before it is limited; the loss of actors
        does not train encoders."""
        inputs = self.numbered(env, jax.lax.stop_gradient(encoded.actor))
        return masked_logits(self.apply_each(self.actor_net(self.action_size(env)), actor, inputs), encoded.legal)

    def chosen(self, env: Environment, outputs: jax.Array, alive: jax.Array, keys: jax.Array) -> jax.Array:
        """Actions as critics take them, with a gradient; discrete ones are drawn with a key per environment."""
        if not isinstance(env.action_space, Discrete):
            return mask_absent(alive, jnp.tanh(outputs))
        rows, _, *rest = outputs.shape
        noise = jax.vmap(lambda key: jax.random.gumbel(key, (rows, *rest)), out_axes=1)(keys)
        soft = jax.nn.softmax((outputs + noise) / self.softness)
        hard = jax.nn.one_hot(jnp.argmax(soft, axis=-1), soft.shape[-1])
        return mask_absent(alive, hard + soft - jax.lax.stop_gradient(soft))

    def encoded(self, env: Environment, action: jax.Array, alive: jax.Array) -> jax.Array:
        """Actions of the replay as critics take them."""
        if isinstance(env.action_space, Discrete):
            return mask_absent(alive, jax.nn.one_hot(action, env.action_space.n))
        return mask_absent(alive, self.from_env(env, action))

    def critic_of(self, env: Environment, critic: Any, encoded: Encoded, actions: jax.Array) -> jax.Array:
        """The values by each critic, on the first axis, for every agent."""
        inputs = self.numbered(env, beside_joint(actions, joint(encoded.critic)))
        return self.apply_each(self.critic_net(1), critic, inputs)[..., 0]

    def over_copies(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.over_agents(function)


def _for_critics(action: jax.Array, fresh: jax.Array | None = None) -> jax.Array:
    """The actions of all agents, once for the critic of each; with `fresh`, its agent takes that action instead."""
    agents = action.shape[-2]
    rows = jnp.broadcast_to(action[..., None, :, :], (*action.shape[:-1], agents, action.shape[-1]))
    if fresh is not None:
        rows = jnp.where(jnp.eye(agents, dtype=bool)[..., None], fresh[..., None, :], rows)
    return joint(rows)
