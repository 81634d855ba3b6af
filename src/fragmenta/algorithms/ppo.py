"""Proximal policy optimization (Schulman et al., 2017), for discrete and continuous actions."""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta.algorithms.base import Algorithm
from fragmenta.envs import Discrete, Environment, Transition, World
from fragmenta.errors import ConfigError
from fragmenta.nn import MLP
from fragmenta.rl import (
    Categorical,
    Normal,
    fold_each,
    generalized_advantage,
    keys_by_index,
    next_values,
    permutation,
    split_each,
)
from fragmenta.stage import all_mean, all_sum, stage


class Learner(NamedTuple):
    """What learning changes."""

    params: Any
    optimizer: Any


class State(NamedTuple):
    """What one iteration hands to the next."""

    world: World
    learner: Learner
    keys: jax.Array


class Sample(NamedTuple):
    """What the loss needs of a step."""

    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    value: jax.Array


@dataclasses.dataclass(frozen=True)
class PPO(Algorithm):
    """Clipped policy updates over a few epochs of minibatches, drawn per environment."""

    horizon: int = 128
    """Steps per environment and iteration."""
    epochs: int = 4
    """Passes over each iteration's steps."""
    minibatches: int = 4
    """Minibatches per pass; each holds a slice of every environment's steps."""
    learning_rate: float = 1e-3
    anneal: bool = True
    """Let the learning rate fall linearly to zero over the run."""
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_value: bool = False
    """Clip the change of the value, too."""
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of the policy and of the value network alike."""
    compute: str = "float32"
    """Precision of the networks' arithmetic: float32 or bfloat16. Parameters and optimizer stay float32."""

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.horizon

    def validate(self, env: Environment) -> None:
        super().validate(env)
        if self.minibatches < 1 or self.horizon < 1 or self.horizon % self.minibatches:
            wrong = f"horizon {self.horizon} does not divide into {self.minibatches} minibatches"
            raise ConfigError(f"{wrong}: choose a horizon that is a multiple of minibatches")
        if self.compute not in ("float32", "bfloat16"):
            raise ConfigError(f"compute is '{self.compute}': choose float32 or bfloat16")

    def init(self, env: Environment, key: jax.Array) -> State:
        world_key, train_key, policy_key, value_key = jax.random.split(key, 4)
        world = env.reset(keys_by_index(world_key, self.num_envs))
        params: dict[str, Any] = {"policy": self._policy_net(env).init(policy_key, world.observation)}
        params["value"] = self._value_net().init(value_key, world.observation)
        if not isinstance(env.action_space, Discrete):
            params["log_std"] = jnp.zeros(env.action_space.shape)
        keys = keys_by_index(train_key, self.num_envs)
        return State(world, Learner(params, self._optimizer().init(params)), keys)

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys, learn_keys = split_each(state.keys, 3)
        # Cast once, not at every step; actors elsewhere get the smaller copy.
        policy = jax.tree.map(lambda x: x.astype(self.compute), state.learner.params)

        def tick(world: World, time: jax.Array) -> tuple[World, tuple[Transition, jax.Array]]:
            action, log_prob = self.act(env, policy, world.observation, fold_each(act_keys, time))
            world, transition = env.step(world, action)
            return world, (transition, log_prob)

        world, (trajectory, log_prob) = jax.lax.scan(tick, state.world.clear_finished(), jnp.arange(self.horizon))
        learner, losses = self.learn(env, state.learner, trajectory, log_prob, learn_keys)
        finished = all_sum(jax.tree.map(jnp.sum, world.finished))
        return State(world, learner, keys), {**finished._asdict(), **losses}

    @stage
    def act(self, env: Environment, params: Any, observation: jax.Array, keys: jax.Array) -> tuple[Any, Any]:
        """Draw an action for every observation, with its log-probability."""
        policy = self._policy(env, params, observation)
        action = policy.sample(keys)
        return action, policy.log_prob(action)

    @stage
    def learn(
        self, env: Environment, learner: Learner, trajectory: Transition, log_prob: jax.Array, keys: jax.Array
    ) -> tuple[Learner, dict[str, jax.Array]]:
        """Improve policy and value on one iteration's steps."""
        value = self._value(learner.params, trajectory.observation)
        next_value = next_values(partial(self._value, learner.params), value, trajectory, env.max_steps)
        advantage = generalized_advantage(trajectory, value, next_value, self.gamma, self.gae_lambda)
        samples = Sample(trajectory.observation, trajectory.action, log_prob, advantage, value)

        def epoch(learner: Learner, index: jax.Array) -> tuple[Learner, dict[str, jax.Array]]:
            return jax.lax.scan(minibatch, learner, self._minibatches(log_prob.shape, fold_each(keys, index)))

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
            policy = self._policy(env, params, batch.observation)
            log_ratio = policy.log_prob(batch.action) - batch.log_prob
            ratio = jnp.exp(log_ratio)
            clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
            policy_loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
            value, target = self._value(params, batch.observation), batch.advantage + batch.value
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

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        """One step of the optimizer."""
        updates, optimizer = self._optimizer().update(gradients, learner.optimizer, learner.params)
        return Learner(optax.apply_updates(learner.params, updates), optimizer)

    def _minibatches(self, shape: tuple[int, ...], keys: jax.Array) -> jax.Array:
        """Permute each environment's steps by its own key; row i has minibatch i, a slice of every environment."""
        horizon, num_envs = shape
        order = jax.vmap(lambda key: permutation(key, horizon), out_axes=1)(keys)
        return (order * num_envs + jnp.arange(num_envs)).reshape(self.minibatches, -1)

    def _optimizer(self) -> optax.GradientTransformation:
        updates = -(-self.total_steps // self.steps_per_iteration) * self.epochs * self.minibatches
        rate = optax.linear_schedule(self.learning_rate, 0.0, updates) if self.anneal else self.learning_rate
        return optax.flatten(optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.adam(rate, eps=1e-5)))

    def _policy(self, env: Environment, params: Any, observation: jax.Array) -> Categorical | Normal:
        outputs: Any = self._policy_net(env).apply(params["policy"], observation)
        return Categorical(outputs) if isinstance(env.action_space, Discrete) else Normal(outputs, params["log_std"])

    def _policy_net(self, env: Environment) -> MLP:
        space = env.action_space
        return MLP(self.hidden, space.n if isinstance(space, Discrete) else space.shape[0], 0.01, self.compute)

    def _value(self, params: Any, observation: jax.Array) -> jax.Array:
        outputs: Any = self._value_net().apply(params["value"], observation)
        return outputs[..., 0]

    def _value_net(self) -> MLP:
        return MLP(self.hidden, 1, 1.0, self.compute)
