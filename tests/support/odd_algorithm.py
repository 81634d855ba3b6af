"""An algorithm with unusual structure: nested pytrees, integer state, two loops, a nested loop, a stage called twice,
a stage whose output is unused."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fragmenta import Algorithm, Environment, stage
from fragmenta.rl import fold_each, keys_by_index, split_each


@dataclasses.dataclass(frozen=True)
class Odd(Algorithm):
    rounds: int = 3
    ticks: int = 4

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        return {
            "world": env.reset(keys_by_index(key, self.num_envs)),
            "weights": [{"w": jnp.ones((4, 2)) * 0.1}, (jnp.zeros(2), jnp.arange(3))],
            "keys": keys_by_index(jax.random.fold_in(key, 1), self.num_envs),
            "count": jnp.zeros((), jnp.int32),
            "constant": jnp.asarray(2.0),
            "memory": {"seen": jnp.zeros((self.num_envs, 4)), "rows": jnp.zeros((3, self.num_envs), jnp.int32)},
        }

    def params(self, state: dict[str, Any]) -> Any:
        return state["weights"]

    @stage
    def act(self, weights: Any, observation: jax.Array, keys: jax.Array) -> dict[str, jax.Array]:
        noise = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
        scores = observation @ weights[0]["w"] + weights[1][0] + noise
        return {"action": jnp.argmax(scores, axis=-1).astype(jnp.int32), "score": jnp.max(scores, axis=-1)}

    @stage
    def note(self, observation: jax.Array) -> jax.Array:
        return jnp.sin(observation)

    @stage
    def remember(self, memory: Any, score: jax.Array, action: jax.Array) -> Any:
        rows = jnp.roll(memory["rows"], 1, axis=0).at[0].set(action)
        return {"seen": memory["seen"] * 0.5 + score[:, None], "rows": rows}

    @stage
    def learn(self, weights: Any, scores: jax.Array, notes: jax.Array) -> Any:
        pull = jnp.mean(scores) + jnp.mean(notes) * 0.01
        kernel = jax.tree.map(lambda w: w * 0.9 + 0.01 * pull, weights[0])
        return [kernel, (weights[1][0] + 0.1 * pull, weights[1][1] + 1)]

    def iterate(self, env: Environment, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        keys, act_keys = split_each(state["keys"])

        def tick(carry: Any, time: jax.Array) -> Any:
            world, memory, count = carry
            chosen = self.act(state["weights"], world.observation, fold_each(act_keys, time))
            self.note(world.observation)
            world, transition = env.step(world, chosen["action"])
            memory = self.remember(memory, chosen["score"], transition.action)
            return (world, memory, count + 1), (chosen["score"], transition.reward * time)

        def outer(carry: Any, index: jax.Array) -> Any:
            carry, (scores, weighted) = jax.lax.scan(tick, carry, index * self.ticks + jnp.arange(self.ticks))
            world, memory, count = carry
            again = self.act(state["weights"], world.observation, fold_each(act_keys, 1000 + index))
            return (world, memory, count + 2), (scores + again["score"], jnp.sum(weighted, axis=0))

        carry, (scores, weighted) = jax.lax.scan(
            outer, (state["world"], state["memory"], state["count"]), jnp.arange(3)
        )
        world, memory, count = carry

        def backwards(total: jax.Array, row: jax.Array) -> Any:
            weights = self.learn(total, row, memory["seen"])
            return weights, weights[1][0]

        weights, path = jax.lax.scan(backwards, state["weights"], scores, reverse=True)
        metrics = {
            "path": path,
            "reward": jnp.sum(weighted) * state["constant"],
            "count": count,
            "action_mean": jnp.mean(memory["rows"].astype(jnp.float32)),
        }
        state = state | {"world": world, "weights": weights, "keys": keys, "count": count, "memory": memory}
        return state, metrics
