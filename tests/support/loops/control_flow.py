"""Stages in unusual places: inside other stages, in Python loops, in branches, in loops of dynamic length."""

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta import Algorithm, Environment, stage


@jax.tree_util.register_static
class Mode(enum.Enum):
    """A Python value that a stage branches on while it is traced."""

    LINEAR = "linear"
    SQUASHED = "squashed"


class State(NamedTuple):
    world: Any
    weights: jax.Array
    heads: jax.Array
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class ControlFlowBase(Algorithm):
    """A linear policy with noise; the loops below train it only to exercise control flow."""

    num_envs: int = 8

    def params(self, state: State) -> Any:
        return state.weights

    def init(self, env: Environment, key: jax.Array) -> State:
        key, weights_key, world_key = jax.random.split(key, 3)
        weights = 0.1 * jax.random.normal(weights_key, (env.observation_space.shape[0], 1))
        world = env.reset(jax.random.split(world_key, self.num_envs))
        return State(world, weights, jnp.zeros((3, weights.shape[0])), key)

    @stage
    def score(self, weights: jax.Array, observation: jax.Array, mode: Mode) -> jax.Array:
        score = observation @ weights
        return jnp.tanh(score) if mode is Mode.SQUASHED else score

    @stage
    def act(self, weights: jax.Array, observation: jax.Array, key: jax.Array, exploring: bool) -> jax.Array:
        """A stage that calls a stage; `exploring` is a Python bool."""
        score = self.score(weights, observation, Mode.SQUASHED)
        return score + jnp.where(exploring, 0.3, 0.0) * jax.random.normal(key, score.shape)


@dataclasses.dataclass(frozen=True)
class NestedLoops(ControlFlowBase):
    """Nested stages, a stage called twice, Python loops over stages, nested scans, a scan of length 0."""

    @stage
    def head(self, index: Any, heads: jax.Array, observation: jax.Array, reward: jax.Array) -> jax.Array:
        """One of several small learners; `index` is a Python int."""
        error = observation @ heads[index] - 0.1 * (index + 1) * reward
        return heads.at[index].add(-0.01 * jnp.mean(error[..., None] * observation, axis=(0, 1)))

    @stage
    def learn(self, weights: jax.Array, observation: jax.Array, reward: jax.Array) -> jax.Array:
        squashed = self.score(weights, observation, Mode.SQUASHED)
        linear = self.score(weights, observation, Mode.LINEAR)
        pull = jnp.mean((reward[..., None] + squashed - linear) * observation, axis=(0, 1))
        return weights + 1e-3 * pull[:, None]

    def iterate(self, env: Environment, state: State) -> Any:
        key, act_key, last_key = jax.random.split(state.key, 3)

        def tick(world: Any, key: jax.Array) -> Any:
            action = self.act(state.weights, world.observation, key, True)
            next_world, transition = env.step(world, action)
            return next_world, (world.observation, transition.reward)

        def round_of(world: Any, keys: jax.Array) -> Any:
            return jax.lax.scan(tick, world, keys)

        world, steps = jax.lax.scan(round_of, state.world, jax.random.split(act_key, (2, 3)))
        world, none = jax.lax.scan(tick, world, jax.random.split(act_key, 0))
        observation, reward = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)
        weights = self.learn(state.weights, observation, reward)
        calm = self.act(weights, world.observation, last_key, False)
        world, transition = env.step(world, calm)
        weights = self.learn(weights, transition.observation[None], transition.reward[None])
        heads = state.heads
        for index in range(3):
            heads = self.head(index, heads, observation, reward)
        metrics = {"reward": reward.mean(), "calm": jnp.abs(calm).mean(), "none": none[1].sum()}
        return State(world, weights, heads, key), metrics


@dataclasses.dataclass(frozen=True)
class BranchingLoop(ControlFlowBase):
    """A stage in a cond, one in a switch, one in a while_loop and one in a fori_loop."""

    @stage
    def learn(self, weights: jax.Array, observation: jax.Array, reward: jax.Array) -> jax.Array:
        return weights + 1e-3 * jnp.mean(reward[:, None] * observation, axis=0)[:, None]

    @stage
    def decay(self, weights: jax.Array) -> jax.Array:
        return 0.99 * weights

    @stage
    def refine(self, heads: jax.Array, observation: jax.Array) -> jax.Array:
        return 0.5 * heads + 0.1 * jnp.mean(observation, axis=0)

    def iterate(self, env: Environment, state: State) -> Any:
        key, act_key, choice_key = jax.random.split(state.key, 3)

        def tick(time: jax.Array, carry: Any) -> Any:
            world, total = carry
            action = self.act(state.weights, world.observation, jax.random.fold_in(act_key, time), True)
            world, transition = env.step(world, action)
            return world, total + transition.reward

        world, total = jax.lax.fori_loop(0, 4, tick, (state.world, jnp.zeros(self.num_envs)))
        weights = jax.lax.cond(
            total.mean() < -20.0,
            lambda: self.learn(state.weights, world.observation, total),
            lambda: self.decay(state.weights),
        )
        choice = jax.random.randint(choice_key, (), 0, 3)
        weights = jax.lax.switch(choice, [self.decay, lambda w: self.decay(self.decay(w)), lambda w: w], weights)

        def unfinished(carry: Any) -> jax.Array:
            heads, count = carry
            return (count < 5) & (jnp.abs(heads - 0.2 * world.observation.mean(0)).max() > 0.013)

        def closer(carry: Any) -> Any:
            heads, count = carry
            return self.refine(heads, world.observation), count + 1

        heads, count = jax.lax.while_loop(unfinished, closer, (state.heads, jnp.zeros((), jnp.int32)))
        metrics = {"return": total.mean(), "choice": choice, "count": count}
        return State(world, weights, heads, key), metrics


@dataclasses.dataclass(frozen=True)
class StringArgument(ControlFlowBase):
    """A stage that takes a string and branches on it."""

    @stage
    def update(self, weights: jax.Array, observation: jax.Array, rule: str) -> jax.Array:
        pull = observation.mean(axis=0)[:, None]
        return weights + 1e-3 * (jnp.sign(pull) if rule == "sign" else pull)

    def iterate(self, env: Environment, state: State) -> Any:
        key, act_key = jax.random.split(state.key)
        world, transition = env.step(state.world, self.act(state.weights, state.world.observation, act_key, True))
        weights = self.update(state.weights, transition.observation, "mean")
        return State(world, weights, state.heads, key), {"reward": transition.reward.mean()}
