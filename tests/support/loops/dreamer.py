"""A world model in the style of Dreamer: a GRU learns to predict, and an actor learns in imagined rollouts."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from fragmenta import Algorithm, Environment, stage


class WorldModel(nn.Module):
    """Predicts the next memory, the next observation and the reward from the memory, an observation and an action."""

    sees: int
    memory: int = 8

    @nn.compact
    def __call__(self, memory: jax.Array, observation: jax.Array, action: jax.Array) -> Any:
        memory, out = nn.GRUCell(self.memory)(memory, jnp.concatenate([observation, action], axis=-1))
        change = nn.Dense(self.sees)(out)
        return memory, observation + 0.1 * change, nn.Dense(1)(out)[..., 0]


class Actor(nn.Module):
    @nn.compact
    def __call__(self, memory: jax.Array, observation: jax.Array) -> jax.Array:
        hidden = nn.elu(nn.Dense(16)(jnp.concatenate([memory, observation], axis=-1)))
        return 2.0 * jnp.tanh(nn.Dense(1)(hidden))


class State(NamedTuple):
    params: dict[str, Any]
    optimizers: dict[str, Any]
    world: Any
    memory: jax.Array
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class Dreamer(Algorithm):
    num_envs: int = 8
    horizon: int = 6
    imagined: int = 4
    memory: int = 8

    def optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1e-3, eps=1e-5))

    def params(self, state: State) -> Any:
        return state.params

    def model(self, env: Environment) -> WorldModel:
        return WorldModel(env.observation_space.shape[0], self.memory)

    def init(self, env: Environment, key: jax.Array) -> State:
        key, model_key, actor_key, world_key = jax.random.split(key, 4)
        memory, observation = jnp.zeros((1, self.memory)), jnp.zeros((1, *env.observation_space.shape))
        params = {
            "model": self.model(env).init(model_key, memory, observation, jnp.zeros((1, 1))),
            "actor": Actor().init(actor_key, memory, observation),
        }
        optimizers = {name: self.optimizer().init(tree) for name, tree in params.items()}
        world = env.reset(jax.random.split(world_key, self.num_envs))
        return State(params, optimizers, world, jnp.zeros((self.num_envs, self.memory)), key)

    @stage
    def act(self, env: Environment, params: Any, memory: jax.Array, observation: jax.Array, key: jax.Array) -> Any:
        """The action, and the memory after it."""
        action = Actor().apply(params["actor"], memory, observation)
        action += 0.3 * jax.random.normal(key, action.shape)
        memory, _, _ = self.model(env).apply(params["model"], memory, observation, action)
        return action, memory

    @stage
    def learn_model(self, env: Environment, params: Any, optimizer: Any, memory: jax.Array, steps: Any) -> Any:
        def loss(params: Any) -> Any:
            def foresee(memory: jax.Array, step: Any) -> Any:
                action, transition = step
                memory, ahead, reward = self.model(env).apply(params, memory, transition.observation, action)
                error = jnp.mean((ahead - transition.next_observation) ** 2) + jnp.mean(
                    (reward - 0.1 * transition.reward) ** 2
                )
                ended = transition.terminated | transition.truncated
                return jnp.where(ended[:, None], 0.0, memory), (error, memory)

            _, (error, memories) = jax.lax.scan(foresee, memory, steps)
            return error.mean(), memories

        (error, memories), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, optimizer = self.optimizer().update(gradients, optimizer)
        return optax.apply_updates(params, updates), optimizer, memories, error

    @stage
    def learn_actor(self, env: Environment, params: Any, optimizer: Any, model: Any, start: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            def imagine(carry: Any, _: None) -> Any:
                memory, observation = carry
                action = Actor().apply(params, memory, observation)
                memory, observation, reward = self.model(env).apply(model, memory, observation, action)
                return (memory, observation), reward

            _, rewards = jax.lax.scan(imagine, start, None, self.imagined)
            discounts = 0.95 ** jnp.arange(self.imagined)
            return -jnp.mean(discounts @ rewards)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, optimizer = self.optimizer().update(gradients, optimizer)
        return optax.apply_updates(params, updates), optimizer, value

    @stage
    def learn(self, env: Environment, state: State, memory: jax.Array, steps: Any) -> Any:
        params, optimizers = dict(state.params), dict(state.optimizers)
        params["model"], optimizers["model"], memories, model_loss = self.learn_model(
            env, params["model"], optimizers["model"], memory, steps
        )
        # Imagined rollouts start from every step of every environment.
        flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), (memories, steps[1].next_observation))
        params["actor"], optimizers["actor"], value = self.learn_actor(
            env, params["actor"], optimizers["actor"], params["model"], flat
        )
        return params, optimizers, {"model_loss": model_loss, "actor_loss": value}

    def iterate(self, env: Environment, state: State) -> Any:
        key, act_key = jax.random.split(state.key)

        def tick(carry: Any, key: jax.Array) -> Any:
            world, memory = carry
            action, memory = self.act(env, state.params, memory, world.observation, key)
            world, transition = env.step(world, action)
            ended = transition.terminated | transition.truncated
            return (world, jnp.where(ended[:, None], 0.0, memory)), (action, transition)

        (world, memory), steps = jax.lax.scan(
            tick, (state.world, state.memory), jax.random.split(act_key, self.horizon)
        )
        params, optimizers, losses = self.learn(env, state, state.memory, steps)
        return State(params, optimizers, world, memory, key), {**losses, "reward": steps[1].reward.mean()}
