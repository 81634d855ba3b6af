"""DQN with one replay ring for all environments, and with one per environment."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta import Algorithm, Environment, stage
from loops.networks import init_mlp, mlp


class Experience(NamedTuple):
    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    next_observation: jax.Array
    terminated: jax.Array


class Ring(NamedTuple):
    data: Experience
    pointer: jax.Array
    """The index of the next experience."""
    inserted: jax.Array
    """The number of experiences inserted so far."""


class Learner(NamedTuple):
    params: Any
    target: Any
    optimizer: Any
    updates: jax.Array


class State(NamedTuple):
    world: Any
    ring: Ring
    learner: Learner
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class DQN(Algorithm):
    """One flat ring, written by scatter; learning starts once it has enough data; the target is copied by cond."""

    num_envs: int = 8
    ticks: int = 6
    capacity: int = 80
    batch: int = 16
    warm_up: int = 24
    epsilon: float = 0.2
    gamma: float = 0.95
    period: int = 4

    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(1e-3, eps=1e-5)

    def empty(self, env: Environment) -> Experience:
        observation = jnp.zeros((self.capacity, *env.observation_space.shape))
        number = jnp.zeros(self.capacity)
        return Experience(observation, number.astype(jnp.int32), number, observation, number.astype(bool))

    def init(self, env: Environment, key: jax.Array) -> State:
        key, network_key, world_key = jax.random.split(key, 3)
        params = init_mlp(network_key, env.observation_space.shape[0], 16, env.action_space.n)
        world = env.reset(jax.random.split(world_key, self.num_envs))
        ring = Ring(self.empty(env), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        learner = Learner(params, params, self.optimizer().init(params), jnp.zeros((), jnp.int32))
        return State(world, ring, learner, key)

    @stage
    def act(self, params: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        explore_key, action_key = jax.random.split(key)
        q = mlp(params, observation)
        n, actions = q.shape
        explore = jax.random.uniform(explore_key, (n,)) < self.epsilon
        return jnp.where(explore, jax.random.randint(action_key, (n,), 0, actions), jnp.argmax(q, axis=-1))

    @stage
    def insert(self, ring: Ring, new: Experience) -> Ring:
        n = new.reward.shape[0]
        rows = (ring.pointer + jnp.arange(n)) % self.capacity
        data = jax.tree.map(lambda buffer, x: buffer.at[rows].set(x), ring.data, new)
        return Ring(data, (ring.pointer + n) % self.capacity, ring.inserted + n)

    @stage
    def sample(self, ring: Ring, key: jax.Array) -> Experience:
        filled = jnp.minimum(ring.inserted, self.capacity)
        rows = jax.random.randint(key, (self.batch,), 0, filled)
        return jax.tree.map(lambda buffer: buffer[rows], ring.data)

    def loss(self, params: Any, target: Any, batch: Experience) -> jax.Array:
        n = batch.action.shape[0]
        q = mlp(params, batch.observation)[jnp.arange(n), batch.action]
        best = jnp.max(mlp(target, batch.next_observation), axis=-1)
        target_q = batch.reward + self.gamma * best * (1.0 - batch.terminated)
        return optax.huber_loss(q, target_q).mean()

    @stage
    def learn(self, learner: Learner, batch: Experience) -> tuple[Learner, jax.Array]:
        loss, gradients = jax.value_and_grad(self.loss)(learner.params, learner.target, batch)
        changes, optimizer = self.optimizer().update(gradients, learner.optimizer)
        params, updates = optax.apply_updates(learner.params, changes), learner.updates + 1
        return Learner(params, self.follow(params, learner.target, updates), optimizer, updates), loss

    def follow(self, params: Any, target: Any, updates: jax.Array) -> Any:
        return jax.lax.cond(updates % self.period == 0, lambda: params, lambda: target)

    def iterate(self, env: Environment, state: State) -> Any:
        def tick(state: State, _: None) -> Any:
            key, act_key, sample_key = jax.random.split(state.key, 3)
            action = self.act(state.learner.params, state.world.observation, act_key)
            world, transition = env.step(state.world, action)
            new = Experience(
                transition.observation, action, transition.reward, transition.next_observation, transition.terminated
            )
            ring = self.insert(state.ring, new)
            batch = self.sample(ring, sample_key)
            learner, loss = jax.lax.cond(
                ring.inserted >= self.warm_up,
                lambda: self.learn(state.learner, batch),
                lambda: (state.learner, jnp.zeros(())),
            )
            return State(world, ring, learner, key), (loss, transition.reward.mean())

        state, (losses, rewards) = jax.lax.scan(tick, state, None, self.ticks)
        return state, {"loss": losses.mean(), "reward": rewards.mean(), "inserted": state.ring.inserted}


@dataclasses.dataclass(frozen=True)
class SliceDQN(DQN):
    """The ring is written by dynamic_update_slice, and the target is updated by a tree map."""

    @stage
    def insert(self, ring: Ring, new: Experience) -> Ring:
        n = new.reward.shape[0]  # divides the capacity, so that a slice never wraps around

        def write(buffer: jax.Array, x: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(buffer, x.astype(buffer.dtype), ring.pointer, axis=0)

        data = jax.tree.map(write, ring.data, new)
        return Ring(data, (ring.pointer + n) % self.capacity, ring.inserted + n)

    def follow(self, params: Any, target: Any, updates: jax.Array) -> Any:
        due = updates % self.period == 0
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), params, target)


@dataclasses.dataclass(frozen=True)
class RingsDQN(DQN):
    """A ring per environment, as rows of (N, capacity, ...), with a few samples from each."""

    capacity: int = 12
    each: int = 3

    def init(self, env: Environment, key: jax.Array) -> State:
        state = super().init(env, key)
        data = jax.tree.map(lambda x: jnp.zeros((self.num_envs, *x.shape), x.dtype), state.ring.data)
        position = jnp.zeros(self.num_envs, jnp.int32)
        return state._replace(ring=Ring(data, position, position))

    @stage
    def insert(self, ring: Ring, new: Experience) -> Ring:
        rows = jnp.arange(self.num_envs)
        data = jax.tree.map(lambda buffer, x: buffer.at[rows, ring.pointer].set(x), ring.data, new)
        return Ring(data, (ring.pointer + 1) % self.capacity, ring.inserted + 1)

    @stage
    def sample(self, ring: Ring, key: jax.Array) -> Experience:
        n = ring.pointer.shape[0]
        filled = jnp.minimum(ring.inserted, self.capacity)
        columns = jax.random.randint(key, (n, self.each), 0, filled[:, None])
        picked = jax.tree.map(lambda buffer: buffer[jnp.arange(n)[:, None], columns], ring.data)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), picked)

    @stage
    def gradient(self, learner: Learner, batch: Experience) -> Any:
        return jax.value_and_grad(self.loss)(learner.params, learner.target, batch)

    @stage
    def apply(self, learner: Learner, gradients: Any) -> Learner:
        changes, optimizer = self.optimizer().update(gradients, learner.optimizer)
        params, updates = optax.apply_updates(learner.params, changes), learner.updates + 1
        target = optax.periodic_update(params, learner.target, updates, self.period)
        return Learner(params, target, optimizer, updates)

    @stage
    def learn(self, learner: Learner, batch: Experience) -> tuple[Learner, jax.Array]:
        loss, gradients = self.gradient(learner, batch)
        return self.apply(learner, gradients), loss

    def iterate(self, env: Environment, state: State) -> Any:
        world, ring, key = state.world, state.ring, state.key

        def tick(carry: Any, key: jax.Array) -> Any:
            world, ring = carry
            action = self.act(state.learner.params, world.observation, key)
            world, transition = env.step(world, action)
            new = Experience(
                transition.observation, action, transition.reward, transition.next_observation, transition.terminated
            )
            return (world, self.insert(ring, new)), transition.reward

        def update(learner: Learner, key: jax.Array) -> Any:
            return self.learn(learner, self.sample(ring, key))

        key, act_key, learn_key = jax.random.split(key, 3)
        (world, ring), rewards = jax.lax.scan(tick, (world, ring), jax.random.split(act_key, self.ticks))
        learner, losses = jax.lax.scan(update, state.learner, jax.random.split(learn_key, 3))
        return State(world, ring, learner, key), {"loss": losses[-1], "reward": jnp.mean(rewards)}
