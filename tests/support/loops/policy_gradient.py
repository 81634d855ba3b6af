"""Simple policy gradients with extras: one evaluates itself, one has batch-norm statistics."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from fragmenta import Algorithm, Environment, stage
from loops.networks import init_mlp, log_prob_of, mlp


class State(NamedTuple):
    params: Any
    optimizer: Any
    world: Any
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class EvaluatingLoop(Algorithm):
    """Every iteration ends with a few greedy episodes in separate environments, fewer than those for training."""

    num_envs: int = 8
    horizon: int = 6
    eval_envs: int = 6
    eval_steps: int = 5

    def optimizer(self) -> optax.GradientTransformation:
        return optax.adamw(1e-3, eps=1e-5)

    def params(self, state: State) -> Any:
        return state.params

    def init(self, env: Environment, key: jax.Array) -> State:
        key, network_key, world_key = jax.random.split(key, 3)
        params = init_mlp(network_key, env.observation_space.shape[0], 16, env.action_space.n)
        world = env.reset(jax.random.split(world_key, self.num_envs))
        return State(params, self.optimizer().init(params), world, key)

    @stage
    def act(self, params: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, mlp(params, observation))

    @stage
    def greedy(self, params: Any, observation: jax.Array) -> jax.Array:
        return jnp.argmax(mlp(params, observation), axis=-1)

    @stage
    def learn(self, params: Any, optimizer: Any, observation: jax.Array, action: jax.Array, reward: jax.Array) -> Any:
        to_go = jnp.flip(jnp.cumsum(jnp.flip(reward, 0), axis=0), 0)

        def loss(params: Any) -> jax.Array:
            log_prob = log_prob_of(mlp(params, observation), action)
            return -jnp.mean(log_prob * (to_go - to_go.mean(axis=0, keepdims=True)))

        value, gradients = jax.value_and_grad(loss)(params)
        updates, optimizer = self.optimizer().update(gradients, optimizer, params)
        return optax.apply_updates(params, updates), optimizer, value

    def evaluate(self, env: Environment, params: Any, key: jax.Array) -> jax.Array:
        world = env.reset(jax.random.split(key, self.eval_envs))

        def tick(carry: Any, _: None) -> Any:
            world, total, alive = carry
            world, transition = env.step(world, self.greedy(params, world.observation))
            total += transition.reward * alive
            return (world, total, alive & ~(transition.terminated | transition.truncated)), None

        start = (world, jnp.zeros(self.eval_envs), jnp.ones(self.eval_envs, bool))
        (_, total, _), _ = jax.lax.scan(tick, start, None, self.eval_steps)
        return total.mean()

    def iterate(self, env: Environment, state: State) -> Any:
        key, act_key, eval_key = jax.random.split(state.key, 3)

        def tick(world: Any, key: jax.Array) -> Any:
            action = self.act(state.params, world.observation, key)
            next_world, transition = env.step(world, action)
            return next_world, (world.observation, action, transition.reward)

        world, steps = jax.lax.scan(tick, state.world, jax.random.split(act_key, self.horizon))
        params, optimizer, loss = self.learn(state.params, state.optimizer, *steps)
        metrics = {"loss": loss, "eval_return": self.evaluate(env, params, eval_key)}
        return State(params, optimizer, world, key), metrics


class NormalizedNetwork(nn.Module):
    """Batch norm over all rows, layer norm over each, and dropout."""

    actions: int

    @nn.compact
    def __call__(self, x: jax.Array, training: bool) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not training, momentum=0.9, epsilon=1e-3)(x)
        x = nn.LayerNorm(epsilon=1e-3)(nn.Dense(16)(x))
        x = nn.Dropout(0.2, deterministic=not training)(nn.gelu(x))
        return nn.Dense(self.actions)(x)


class NormalizedState(NamedTuple):
    variables: Any
    """Parameters and batch-norm statistics, as flax returns them."""
    seen_mean: jax.Array
    seen_var: jax.Array
    optimizer: Any
    world: Any
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class NormalizedLoop(Algorithm):
    """Flax batch-norm statistics, and hand-written statistics while acting, both over all environments."""

    num_envs: int = 8
    horizon: int = 6

    def optimizer(self) -> optax.GradientTransformation:
        return optax.rmsprop(3e-4, eps=1e-3)

    def params(self, state: NormalizedState) -> Any:
        return state.variables["params"]

    def init(self, env: Environment, key: jax.Array) -> NormalizedState:
        key, network_key, world_key = jax.random.split(key, 3)
        shape = env.observation_space.shape
        variables = NormalizedNetwork(env.action_space.n).init(network_key, jnp.zeros((1, *shape)), training=False)
        world = env.reset(jax.random.split(world_key, self.num_envs))
        optimizer = self.optimizer().init(variables["params"])
        return NormalizedState(variables, jnp.zeros(shape), jnp.ones(shape), optimizer, world, key)

    @stage
    def act(self, env: Environment, variables: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        logits = NormalizedNetwork(env.action_space.n).apply(variables, observation, training=False)
        return jax.random.categorical(key, logits)

    @stage
    def learn(self, env: Environment, variables: Any, optimizer: Any, steps: Any, key: jax.Array) -> Any:
        observation, action, reward = steps
        flat = observation.reshape(-1, observation.shape[-1])
        advantage = (reward - reward.mean()).reshape(-1) + 0.1

        def loss(params: Any) -> Any:
            logits, changed = NormalizedNetwork(env.action_space.n).apply(
                {**variables, "params": params}, flat, training=True, rngs={"dropout": key}, mutable=["batch_stats"]
            )
            return -jnp.mean(log_prob_of(logits, action.reshape(-1)) * advantage), changed

        (value, changed), gradients = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        updates, optimizer = self.optimizer().update(gradients, optimizer)
        params = optax.apply_updates(variables["params"], updates)
        return {"params": params, **changed}, optimizer, value

    def iterate(self, env: Environment, state: NormalizedState) -> Any:
        key, act_key, dropout_key = jax.random.split(state.key, 3)

        def tick(carry: Any, key: jax.Array) -> Any:
            world, mean, var = carry
            observation = world.observation
            action = self.act(env, state.variables, (observation - mean) / jnp.sqrt(var + 1e-3), key)
            mean = 0.9 * mean + 0.1 * jnp.mean(observation, axis=0)
            var = 0.9 * var + 0.1 * jnp.var(observation, axis=0)
            world, transition = env.step(world, action)
            return (world, mean, var), (observation, action, transition.reward)

        start = (state.world, state.seen_mean, state.seen_var)
        (world, mean, var), steps = jax.lax.scan(tick, start, jax.random.split(act_key, self.horizon))
        variables, optimizer, loss = self.learn(env, state.variables, state.optimizer, steps, dropout_key)
        return NormalizedState(variables, mean, var, optimizer, world, key), {"loss": loss, "seen_var": var}
