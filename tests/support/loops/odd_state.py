"""States of unusual types and shapes: small integers, float16, None, sizes that look like a number of environments."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fragmenta import Algorithm, Environment, stage


class Table(NamedTuple):
    visits: jax.Array
    nothing: None
    flags: jax.Array


@dataclasses.dataclass(frozen=True)
class OddState(Algorithm):
    """Random actions; only the state matters. Half-precision leaves hold small integers, so that nothing is rounded."""

    num_envs: int = 8
    total: int = 32
    ticks: int = 4

    def params(self, state: dict[str, Any]) -> Any:
        return state["numbers"]

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        n = self.num_envs
        return {
            "world": env.reset(jax.random.split(key, n)),
            "table": Table(jnp.zeros((n, self.total // n), jnp.int8), None, jnp.zeros(n, jnp.uint8)),
            "ended": np.zeros(n, bool),
            "pairs": jnp.eye(n),
            "edges": jnp.zeros(n + 1),
            "numbers": {0: jnp.asarray(np.linspace(0.0, 1.0, 3)), 7: np.float64(0.5), -1: None},
            "halves": [jnp.zeros(n, jnp.float16), jnp.zeros((3, n), jnp.bfloat16)],
            "count": jnp.zeros((), jnp.uint32),
            "empty": (),
            "no_columns": jnp.zeros((n, 0), jnp.int32),
            "square": jnp.zeros((n, n, n), jnp.int32),
            "rng": jax.random.fold_in(key, 1),
        }

    @stage
    def act(self, observation: jax.Array, key: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, 0.5, observation.shape[:1]).astype(jnp.uint8)

    @stage
    def keep(self, state: dict[str, Any], action: jax.Array, transition: Any) -> dict[str, Any]:
        n = self.num_envs
        table = state["table"]
        column = state["count"] % (self.total // n)
        observation = transition.observation
        distances = jnp.abs(observation[:, None] - observation[None, :]).sum(-1)
        speed = jnp.abs(observation[:, 1])
        return {
            **state,
            "table": Table(table.visits.at[:, column].add(action.astype(jnp.int8)), None, table.flags ^ (action * 3)),
            "ended": state["ended"] | transition.terminated,
            "pairs": 0.9 * state["pairs"] + 0.1 * distances,
            "edges": jnp.concatenate([jnp.zeros(1), jnp.cumsum(speed)]),
            "halves": [
                state["halves"][0] + action.astype(jnp.float16),
                jnp.roll(state["halves"][1], 1, axis=0).at[0].set(transition.reward.astype(jnp.bfloat16)),
            ],
            "count": state["count"] + 1,
            "square": state["square"] + (action[:, None, None] * action[None, :, None]) * action,
        }

    def iterate(self, env: Environment, state: dict[str, Any]) -> Any:
        def tick(state: dict[str, Any], _: None) -> Any:
            rng, act_rng = jax.random.split(state["rng"])
            action = self.act(state["world"].observation, act_rng)
            world, transition = env.step(state["world"], action)
            return {**self.keep(state, action, transition), "world": world, "rng": rng}, transition.reward

        state, rewards = jax.lax.scan(tick, state, None, self.ticks)
        numbers = state["numbers"]
        pull = state["pairs"].mean()
        numbers = {0: numbers[0] + 0.01 * pull, 7: numbers[7] * 0.5, -1: None}
        metrics = {
            "reward": rewards.mean(),
            "visits": state["table"].visits.sum(dtype=jnp.int32),
            "trace": jnp.trace(state["pairs"]),
            "farthest": jnp.argmax(state["pairs"].sum(0)),
            "nothing": None,
        }
        return {**state, "numbers": numbers}, metrics


@dataclasses.dataclass(frozen=True)
class WeakState(Algorithm):
    """Starts with weakly typed numbers, which become strongly typed in the first iteration, as plain JAX allows."""

    num_envs: int = 8

    def params(self, state: dict[str, Any]) -> Any:
        return state["level"]

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        world = env.reset(jax.random.split(key, self.num_envs))
        return {"world": world, "level": jnp.asarray(0.0), "best": jnp.array(0.0), "count": jnp.asarray(0)}

    @stage
    def act(self, observation: jax.Array, level: jax.Array) -> jax.Array:
        return (observation[:, 2] > 0.01 * level + 0.001).astype(jnp.int32)

    @stage
    def learn(self, level: jax.Array, observation: jax.Array) -> jax.Array:
        return 0.9 * level + 0.1 * observation[:, 2].mean()

    def iterate(self, env: Environment, state: dict[str, Any]) -> Any:
        world = state["world"]
        for _ in range(3):
            world, transition = env.step(world, self.act(world.observation, state["level"]))
        level = self.learn(state["level"], transition.next_observation)
        best = jnp.maximum(state["best"], transition.reward.max())
        return {"world": world, "level": level, "best": best, "count": state["count"] + 1}, {"level": level}
