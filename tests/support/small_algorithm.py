"""An algorithm as a user would write it: policy gradient with a linear policy, small enough to compile quickly."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fragmenta import Algorithm, Environment, World, stage
from fragmenta.rl import fold_each, keys_by_index, split_each

SCALE = jnp.full((), 0.1)  # created at import, as module constants often are


class State(NamedTuple):
    world: World
    params: dict[str, jax.Array]
    keys: jax.Array
    count: jax.Array


@dataclasses.dataclass(frozen=True)
class Reinforce(Algorithm):
    """Policy gradient."""

    horizon: int = 4
    """Steps per iteration."""
    learning_rate: float = 1e-2
    center: bool = True

    def init(self, env: Environment, key: jax.Array) -> State:
        params = {"weights": SCALE * jax.random.normal(key, (4, 2)), "bias": jnp.zeros(2)}
        keys = keys_by_index(key, self.num_envs)
        return State(env.reset(keys), params, keys, jnp.zeros((), jnp.int32))

    def params(self, state: State) -> dict[str, jax.Array]:
        return state.params

    def decide(self, env: Environment, params: Any, observation: Any, alive: Any, memory: Any, keys: Any) -> Any:
        logits = observation @ params["weights"] + params["bias"]
        action = jnp.argmax(logits, axis=-1) if keys is None else jax.vmap(jax.random.categorical)(keys, logits)
        return action, memory

    @stage
    def act(self, env: Environment, params: Any, observation: jax.Array, keys: jax.Array) -> jax.Array:
        return self.decide(env, params, observation, None, (), keys)[0]

    @stage
    def learn(self, params: Any, observation: jax.Array, action: jax.Array, reward: jax.Array) -> Any:
        gain = jnp.cumsum(reward[::-1], axis=0)[::-1]
        gain = gain - gain.mean() if self.center else gain

        def loss(params: Any) -> jax.Array:
            log_prob = jax.nn.log_softmax(observation @ params["weights"] + params["bias"])
            return -jnp.mean(jnp.take_along_axis(log_prob, action[..., None], axis=-1)[..., 0] * gain)

        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - self.learning_rate * g, params, gradient), value

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        keys, act_keys = split_each(state.keys)

        def tick(world: World, time: jax.Array) -> Any:
            action = self.act(env, state.params, world.observation, fold_each(act_keys, time))
            world, transition = env.step(world, action)
            return world, (transition.observation, action, transition.reward)

        world, trajectory = jax.lax.scan(tick, state.world, jnp.arange(self.horizon))
        params, loss = self.learn(state.params, *trajectory)
        return State(world, params, keys, state.count + 1), {"loss": loss, "reward": trajectory[2].mean()}
