"""Several agents at once: a population of learners by vmap, and self-play between two sides."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta import Algorithm, Environment, stage
from loops.networks import init_mlp, mlp


class Member(NamedTuple):
    """One learner; in the state all members are stacked."""

    params: Any
    optimizer: Any
    rate: jax.Array


class State(NamedTuple):
    members: Member
    world: Any
    fitness: jax.Array
    key: jax.Array


def gaussian_log_prob(params: Any, observation: jax.Array, action: jax.Array) -> jax.Array:
    """The log-probability of actions from a Gaussian around the network's output with standard deviation 0.5."""
    return -2.0 * jnp.sum((action - mlp(params, observation)) ** 2, axis=-1)


@dataclasses.dataclass(frozen=True)
class Population(Algorithm):
    """Independent learners share the environments evenly; the worst one is replaced by a variant of the best."""

    num_envs: int = 8
    horizon: int = 6
    size: int = 4

    def params(self, state: State) -> Any:
        return state.members.params

    def init(self, env: Environment, key: jax.Array) -> State:
        key, network_key, world_key = jax.random.split(key, 3)

        def member(key: jax.Array, rate: jax.Array) -> Member:
            params = init_mlp(key, env.observation_space.shape[0], 8, 1)
            return Member(params, optax.scale_by_adam(eps=1e-5).init(params), rate)

        members = jax.vmap(member)(jax.random.split(network_key, self.size), jnp.geomspace(1e-3, 1e-4, self.size))
        world = env.reset(jax.random.split(world_key, self.num_envs))
        return State(members, world, jnp.zeros(self.size), key)

    @stage
    def act(self, params: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        rows_by_member = observation.reshape(self.size, -1, observation.shape[-1])

        def one(params: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
            mean = mlp(params, observation)
            return mean + 0.5 * jax.random.normal(key, mean.shape)

        action = jax.vmap(one)(params, rows_by_member, jax.random.split(key, self.size))
        return action.reshape(observation.shape[0], -1)

    @stage
    def learn(self, members: Member, observation: jax.Array, action: jax.Array, reward: jax.Array) -> Any:
        def one(member: Member, observation: jax.Array, action: jax.Array, reward: jax.Array) -> Any:
            to_go = jnp.cumsum(reward[::-1], axis=0)[::-1]
            advantage = (to_go - to_go.mean()) / (to_go.std() + 1.0)

            def loss(params: Any) -> jax.Array:
                return -jnp.mean(gaussian_log_prob(params, observation, action) * advantage)

            gradients = jax.grad(loss)(member.params)
            updates, optimizer = optax.scale_by_adam(eps=1e-5).update(gradients, member.optimizer)
            params = jax.tree.map(lambda p, u: p - member.rate * u, member.params, updates)
            return Member(params, optimizer, member.rate), reward.mean()

        # From (time, environments, ...) to (members, time, environments of each, ...).
        def by_member(x: jax.Array) -> jax.Array:
            return jnp.moveaxis(x.reshape(x.shape[0], self.size, -1, *x.shape[2:]), 1, 0)

        return jax.vmap(one)(members, by_member(observation), by_member(action), by_member(reward))

    @stage
    def exploit(self, members: Member, fitness: jax.Array, key: jax.Array) -> Member:
        best, worst = jnp.argmax(fitness), jnp.argmin(fitness)
        members = jax.tree.map(lambda x: x.at[worst].set(x[best]), members)
        factor = jnp.where(jax.random.bernoulli(key), 1.25, 0.8)
        return members._replace(rate=members.rate.at[worst].multiply(factor))

    def iterate(self, env: Environment, state: State) -> Any:
        key, act_key, explore_key = jax.random.split(state.key, 3)

        def tick(world: Any, key: jax.Array) -> Any:
            action = self.act(state.members.params, world.observation, key)
            next_world, transition = env.step(world, action)
            return next_world, (world.observation, action, transition.reward)

        world, steps = jax.lax.scan(tick, state.world, jax.random.split(act_key, self.horizon))
        members, rewards = self.learn(state.members, *steps)
        fitness = 0.5 * state.fitness + 0.5 * rewards
        members = self.exploit(members, fitness, explore_key)
        metrics = {"best": fitness.max(), "spread": fitness.max() - fitness.min(), "rates": members.rate}
        return State(members, world, fitness, key), metrics


class Sides(NamedTuple):
    left: Any
    right: Any
    world: Any
    wins: jax.Array
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class SelfPlay(Algorithm):
    """The first half of the environments plays against the second: each observes its rival and gets the difference."""

    num_envs: int = 8
    horizon: int = 5

    def params(self, state: Sides) -> Any:
        return state.left

    def init(self, env: Environment, key: jax.Array) -> Sides:
        key, left_key, right_key, world_key = jax.random.split(key, 4)
        sees = 2 * env.observation_space.shape[0]
        world = env.reset(jax.random.split(world_key, self.num_envs))
        wins = jnp.zeros(self.num_envs // 2, jnp.int32)
        return Sides(init_mlp(left_key, sees, 8, 1), init_mlp(right_key, sees, 8, 1), world, wins, key)

    @stage
    def act(self, left: Any, right: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        n = observation.shape[0]
        left_rows, right_rows = observation[: n // 2], observation[n // 2 :]
        left_output = mlp(left, jnp.concatenate([left_rows, right_rows], axis=-1))
        right_output = mlp(right, jnp.concatenate([right_rows, left_rows], axis=-1))
        mean = jnp.concatenate([left_output, right_output])
        return mean + 0.5 * jax.random.normal(key, mean.shape)

    @stage
    def learn(self, params: Any, observation: jax.Array, action: jax.Array, won: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return -jnp.mean(gaussian_log_prob(params, observation, action) * won)

        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params))

    def iterate(self, env: Environment, state: Sides) -> Any:
        key, act_key = jax.random.split(state.key)

        def tick(world: Any, key: jax.Array) -> Any:
            action = self.act(state.left, state.right, world.observation, key)
            next_world, transition = env.step(world, action)
            return next_world, (world.observation, action, transition.reward)

        world, (observation, action, reward) = jax.lax.scan(tick, state.world, jax.random.split(act_key, self.horizon))
        n = self.num_envs
        difference = 0.1 * (reward[:, : n // 2] - reward[:, n // 2 :])
        rival = jnp.roll(observation, n // 2, axis=1)
        inputs = jnp.concatenate([observation, rival], axis=-1)
        left = self.learn(state.left, inputs[:, : n // 2], action[:, : n // 2], difference)
        right = self.learn(state.right, inputs[:, n // 2 :], action[:, n // 2 :], -difference)
        wins = state.wins + (difference.sum(0) > 0)
        metrics = {"difference": difference.mean(), "wins": wins.sum(), "best_pair": difference.sum(0).max()}
        return Sides(left, right, world, wins, key), metrics
