"""REINFORCE with whole episodes: a while_loop runs until all have ended, and means are over unmasked steps."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fragmenta import Algorithm, Box, Discrete, Environment, stage
from loops.networks import init_mlp, log_prob_of, mlp


class Place(NamedTuple):
    position: jax.Array


@dataclasses.dataclass(frozen=True)
class Corridor(Environment):
    """Five places in a row: starts in the middle, ends on either side; the right end pays."""

    max_steps: int = 20

    @property
    def observation_space(self) -> Box:
        return Box(-1.0, 1.0, (2,))

    @property
    def action_space(self) -> Discrete:
        return Discrete(2)

    def initial(self, key: jax.Array) -> Place:
        return Place(jax.random.randint(key, (), -1, 2))

    def observe(self, state: Place) -> jax.Array:
        return jnp.stack([state.position / 2, jnp.ones(())])

    def advance(self, state: Place, action: jax.Array, key: jax.Array) -> tuple[Place, jax.Array, jax.Array]:
        position = state.position + 2 * action.astype(jnp.int32) - 1
        return Place(position), jnp.where(position >= 2, 1.0, -0.1), jnp.abs(position) >= 2


class State(NamedTuple):
    params: Any
    optimizer: Any
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class Reinforce(Algorithm):
    num_envs: int = 8
    limit: int = 10

    def optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(0.02, momentum=0.9)

    def params(self, state: State) -> Any:
        return state.params

    def init(self, env: Environment, key: jax.Array) -> State:
        key, network_key = jax.random.split(key)
        params = init_mlp(network_key, env.observation_space.shape[0], 8, env.action_space.n)
        return State(params, self.optimizer().init(params), key)

    @stage
    def act(self, params: Any, observation: jax.Array, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, mlp(params, observation))

    @stage
    def learn(self, state: State, observation: jax.Array, action: jax.Array, reward: jax.Array, mask: jax.Array) -> Any:
        def backwards(after: jax.Array, reward: jax.Array) -> Any:
            total = reward + 0.95 * after
            return total, total

        _, returns = jax.lax.scan(backwards, jnp.zeros(reward.shape[1]), reward * mask, reverse=True)
        count = mask.sum()
        baseline = (returns * mask).sum() / count

        def loss(params: Any) -> jax.Array:
            log_prob = log_prob_of(mlp(params, observation), action)
            return -(log_prob * (returns - baseline) * mask).sum() / count

        value, gradients = jax.value_and_grad(loss)(state.params)
        updates, optimizer = self.optimizer().update(gradients, state.optimizer)
        return State(optax.apply_updates(state.params, updates), optimizer, state.key), value

    def iterate(self, env: Environment, state: State) -> Any:
        key, reset_key, act_key = jax.random.split(state.key, 3)
        world = env.reset(jax.random.split(reset_key, self.num_envs))
        rows = (self.limit, self.num_envs)
        stored = {
            "observation": jnp.zeros((*rows, *env.observation_space.shape)),
            "action": jnp.zeros(rows, jnp.int32),
            "reward": jnp.zeros(rows),
            "mask": jnp.zeros(rows),
        }

        def going_on(carry: Any) -> jax.Array:
            time, _, ended, _ = carry
            return (time < self.limit) & ~ended.all()

        def tick(carry: Any) -> Any:
            time, world, ended, stored = carry
            action = self.act(state.params, world.observation, jax.random.fold_in(act_key, time))
            next_world, transition = env.step(world, action)
            new = {"observation": world.observation, "action": action, "reward": transition.reward, "mask": 1.0 - ended}
            stored = {name: stored[name].at[time].set(x) for name, x in new.items()}
            return time + 1, next_world, ended | transition.terminated | transition.truncated, stored

        start = (jnp.zeros((), jnp.int32), world, jnp.zeros(self.num_envs, bool), stored)
        ticks, _, ended, stored = jax.lax.while_loop(going_on, tick, start)
        state, loss = self.learn(state._replace(key=key), **stored)
        metrics = {
            "loss": loss,
            "ticks": ticks,
            "return": (stored["reward"] * stored["mask"]).sum() / self.num_envs,
            "length": stored["mask"].sum(0).mean(where=ended),
            "ended": ended.sum(),
        }
        metrics["length"] = jnp.where(ended.any(), metrics["length"], 0.0)
        return state, metrics
