"""PPO as it is usually written: one key for all noise, one permutation of the flat batch."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from fragmenta import Algorithm, Environment, stage
from loops.networks import ActorCriticNetwork


class Step(NamedTuple):
    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


class RunnerState(NamedTuple):
    train: Any
    world: Any
    key: jax.Array


class Parameters(NamedTuple):
    params: Any
    optimizer: Any


def policy_of(logits: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probability of the action, and the entropy."""
    log_probs = jax.nn.log_softmax(logits)
    log_prob = jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]
    return log_prob, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


@dataclasses.dataclass(frozen=True)
class PPOBase(Algorithm):
    """What the variants share: acting, advantages, the loss."""

    num_envs: int = 8
    horizon: int = 8
    epochs: int = 2
    minibatches: int = 4
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2

    def network(self, env: Environment) -> ActorCriticNetwork:
        return ActorCriticNetwork(env.action_space.n)

    def optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(self.learning_rate, eps=1e-5))

    def params(self, state: RunnerState) -> Any:
        return state.train.params

    @stage
    def act(self, env: Environment, params: Any, observation: jax.Array, key: jax.Array) -> Any:
        logits, value = self.network(env).apply(params, observation)
        action = jax.random.categorical(key, logits)
        return action, policy_of(logits, action)[0], value

    def collect(self, env: Environment, params: Any, world: Any, key: jax.Array) -> tuple[Any, Step]:
        def tick(carry: Any, _: None) -> tuple[Any, Step]:
            world, key = carry
            key, act_key = jax.random.split(key)
            action, log_prob, value = self.act(env, params, world.observation, act_key)
            next_world, transition = env.step(world, action)
            done = transition.terminated | transition.truncated
            return (next_world, key), Step(world.observation, action, log_prob, value, transition.reward, done)

        (world, _), steps = jax.lax.scan(tick, (world.clear_finished(), key), None, self.horizon)
        return world, steps

    def advantages(self, steps: Step, last_value: jax.Array) -> jax.Array:
        def backwards(carry: Any, step: Step) -> Any:
            advantage, next_value = carry
            alive = 1.0 - step.done
            delta = step.reward + self.gamma * next_value * alive - step.value
            advantage = delta + self.gamma * self.gae_lambda * alive * advantage
            return (advantage, step.value), advantage

        start = (jnp.zeros_like(last_value), last_value)
        return jax.lax.scan(backwards, start, steps, reverse=True)[1]

    def loss(self, params: Any, env: Environment, batch: Any) -> tuple[jax.Array, Any]:
        step, advantage, target = batch
        logits, value = self.network(env).apply(params, step.observation)
        log_prob, entropy = policy_of(logits, step.action)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = jnp.exp(log_prob - step.log_prob)
        clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        near = step.value + jnp.clip(value - step.value, -self.clip, self.clip)
        value_loss = 0.5 * jnp.maximum((value - target) ** 2, (near - target) ** 2).mean()
        entropy = entropy.mean()
        losses = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return policy_loss + 0.5 * value_loss - 0.01 * entropy, losses

    def shuffled(self, key: jax.Array, batch: Any) -> Any:
        """The flat batch, shuffled and split into minibatches."""
        size = self.num_envs * self.horizon
        order = jax.random.permutation(key, size)
        flat = jax.tree.map(lambda x: x.reshape((size, *x.shape[2:])), batch)
        return jax.tree.map(lambda x: x[order].reshape((self.minibatches, -1, *x.shape[1:])), flat)

    def report(self, world: Any) -> dict[str, jax.Array]:
        episodes = world.finished.episodes.sum()
        return {"episodes": episodes, "return_mean": world.finished.returns.sum() / jnp.maximum(episodes, 1)}


@dataclasses.dataclass(frozen=True)
class TrainStatePPO(PPOBase):
    """With flax's TrainState, and the whole update in one stage."""

    def init(self, env: Environment, key: jax.Array) -> RunnerState:
        key, network_key, world_key = jax.random.split(key, 3)
        network = self.network(env)
        params = network.init(network_key, jnp.zeros((1, *env.observation_space.shape)))
        train = TrainState.create(apply_fn=network.apply, params=params, tx=self.optimizer())
        return RunnerState(train, env.reset(jax.random.split(world_key, self.num_envs)), key)

    @stage
    def learn(self, env: Environment, train: TrainState, steps: Step, last: jax.Array, key: jax.Array) -> Any:
        advantage = self.advantages(steps, train.apply_fn(train.params, last)[1])
        batch = (steps, advantage, advantage + steps.value)

        def epoch(carry: Any, _: None) -> Any:
            train, key = carry
            key, order_key = jax.random.split(key)
            train, losses = jax.lax.scan(minibatch, train, self.shuffled(order_key, batch))
            return (train, key), losses

        def minibatch(train: TrainState, batch: Any) -> Any:
            (_, losses), gradients = jax.value_and_grad(self.loss, has_aux=True)(train.params, env, batch)
            return train.apply_gradients(grads=gradients), losses

        (train, _), losses = jax.lax.scan(epoch, (train, key), None, self.epochs)
        return train, jax.tree.map(jnp.mean, losses)

    def iterate(self, env: Environment, state: RunnerState) -> Any:
        key, act_key, learn_key = jax.random.split(state.key, 3)
        world, steps = self.collect(env, state.train.params, state.world, act_key)
        train, losses = self.learn(env, state.train, steps, world.observation, learn_key)
        return RunnerState(train, world, key), {**self.report(world), **losses}


@dataclasses.dataclass(frozen=True)
class NestedPPO(PPOBase):
    """With `gradient` and `apply` as stages inside `learn`."""

    def init(self, env: Environment, key: jax.Array) -> RunnerState:
        key, network_key, world_key = jax.random.split(key, 3)
        params = self.network(env).init(network_key, jnp.zeros((1, *env.observation_space.shape)))
        train = Parameters(params, self.optimizer().init(params))
        return RunnerState(train, env.reset(jax.random.split(world_key, self.num_envs)), key)

    @stage
    def gradient(self, env: Environment, params: Any, batch: Any) -> Any:
        return jax.grad(self.loss, has_aux=True)(params, env, batch)

    @stage
    def apply(self, train: Parameters, gradients: Any) -> Parameters:
        updates, optimizer = self.optimizer().update(gradients, train.optimizer, train.params)
        return Parameters(optax.apply_updates(train.params, updates), optimizer)

    @stage
    def learn(self, env: Environment, train: Parameters, steps: Step, last: jax.Array, key: jax.Array) -> Any:
        advantage = self.advantages(steps, self.network(env).apply(train.params, last)[1])
        batch = (steps, advantage, advantage + steps.value)

        def epoch(train: Parameters, key: jax.Array) -> Any:
            return jax.lax.scan(minibatch, train, self.shuffled(key, batch))

        def minibatch(train: Parameters, batch: Any) -> Any:
            gradients, losses = self.gradient(env, train.params, batch)
            return self.apply(train, gradients), losses

        train, losses = jax.lax.scan(epoch, train, jax.random.split(key, self.epochs))
        return train, jax.tree.map(lambda x: x[-1, -1], losses)

    def iterate(self, env: Environment, state: RunnerState) -> Any:
        key, act_key, learn_key = jax.random.split(state.key, 3)
        world, steps = self.collect(env, state.train.params, state.world, act_key)
        train, losses = self.learn(env, state.train, steps, world.observation, learn_key)
        return RunnerState(train, world, key), {**self.report(world), **losses}


@dataclasses.dataclass(frozen=True)
class GluePPO(NestedPPO):
    """Without `learn`: advantages, shuffling and jax.grad are in `iterate`; only the optimizer step is a stage."""

    @stage
    def update(self, train: Parameters, gradients: Any) -> Parameters:
        updates, optimizer = self.optimizer().update(gradients, train.optimizer, train.params)
        return Parameters(optax.apply_updates(train.params, updates), optimizer)

    def iterate(self, env: Environment, state: RunnerState) -> Any:
        key, act_key, learn_key = jax.random.split(state.key, 3)
        world, steps = self.collect(env, state.train.params, state.world, act_key)
        last_value = self.network(env).apply(state.train.params, world.observation)[1]
        advantage = self.advantages(steps, last_value)
        batch = (steps, advantage, advantage + steps.value)
        train, losses = state.train, {}
        for epoch_key in jax.random.split(learn_key, self.epochs):
            minibatches = self.shuffled(epoch_key, batch)
            for index in range(self.minibatches):
                minibatch = jax.tree.map(lambda x: x[index], minibatches)  # noqa: B023
                gradients, losses = jax.grad(self.loss, has_aux=True)(train.params, env, minibatch)
                train = self.update(train, gradients)
        return RunnerState(train, world, key), {**self.report(world), **losses}
