"""PQN on MinAtar Breakout beside the same algorithm in the style of single-file JAX libraries, and DQN with a replay of
a million steps on the device: environment steps per second, the sides in turns."""

import argparse
import statistics
import time
from typing import Any

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax

import fragmenta

ENVIRONMENT = "Breakout-MinAtar"
HORIZON, EPOCHS, MINIBATCHES = 32, 4, 8


class Values(nn.Module):
    """Two normalised hidden layers of 128, as PQN has by default."""

    actions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(*x.shape[:-3], -1).astype(jnp.float32)
        for _ in range(2):
            x = nn.relu(nn.LayerNorm()(nn.Dense(128)(x)))
        return nn.Dense(self.actions)(x)


def peer(envs: int, updates: int) -> Any:
    """PQN as one jitted function of a key, with environments that reset themselves."""
    env, params = gymnax.make(ENVIRONMENT)
    network: Any = Values(env.action_space(params).n)
    count = updates * EPOCHS * MINIBATCHES
    optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(optax.linear_schedule(5e-4, 0.0, count)))

    def train(key: jax.Array) -> Any:
        key, reset_key, init_key = jax.random.split(key, 3)
        observation, state = jax.vmap(env.reset, (0, None))(jax.random.split(reset_key, envs), params)
        weights = network.init(init_key, observation)

        def update(carry: Any, step: jax.Array) -> tuple[Any, jax.Array]:
            weights, opt_state, observation, state, key = carry
            epsilon = jnp.clip(1.0 - step / (0.2 * updates), 0.05, 1.0)

            def act(carry: Any, _: None) -> tuple[Any, Any]:
                observation, state, key = carry
                key, explore_key, choice_key, step_key = jax.random.split(key, 4)
                values = network.apply(weights, observation)
                random = jax.random.randint(choice_key, (envs,), 0, values.shape[-1])
                is_random = jax.random.uniform(explore_key, (envs,)) < epsilon
                action = jnp.where(is_random, random, jnp.argmax(values, axis=-1))
                keys = jax.random.split(step_key, envs)
                stepped = jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, params)
                following, state, reward = stepped[:3]
                done = jnp.any(jnp.stack(stepped[3:-1]), axis=0)  # newer versions tell terminated from truncated
                return (following, state, key), (observation, action, reward, done, jnp.max(values, axis=-1))

            (last, state, key), steps = jax.lax.scan(act, (observation, state, key), None, HORIZON)
            observations, actions, rewards, dones, values = steps
            last_value = jnp.max(network.apply(weights, last), axis=-1)

            def backwards(carry: Any, x: Any) -> tuple[Any, jax.Array]:
                total, next_value = carry
                reward, done, value = x
                total = reward + 0.99 * (1.0 - done) * (0.9 * total + 0.1 * next_value)
                return (total, value), total

            _, targets = jax.lax.scan(backwards, (last_value, last_value), (rewards, dones, values), reverse=True)
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (observations, actions, targets))

            def epoch(carry: Any, _: None) -> tuple[Any, jax.Array]:
                weights, opt_state, key = carry
                key, order_key = jax.random.split(key)
                order = jax.random.permutation(order_key, HORIZON * envs)
                batches = jax.tree.map(lambda x: x[order].reshape(MINIBATCHES, -1, *x.shape[1:]), flat)

                def minibatch(carry: Any, batch: Any) -> tuple[Any, jax.Array]:
                    weights, opt_state = carry

                    def loss(weights: Any) -> jax.Array:
                        observation, action, target = batch
                        values = network.apply(weights, observation)
                        value = jnp.take_along_axis(values, action[:, None], axis=-1)[:, 0]
                        return 0.5 * jnp.mean((value - target) ** 2)

                    total, gradients = jax.value_and_grad(loss)(weights)
                    changes, opt_state = optimizer.update(gradients, opt_state)
                    return (optax.apply_updates(weights, changes), opt_state), total

                (weights, opt_state), losses = jax.lax.scan(minibatch, (weights, opt_state), batches)
                return (weights, opt_state, key), jnp.mean(losses)

            (weights, opt_state, key), losses = jax.lax.scan(epoch, (weights, opt_state, key), None, EPOCHS)
            return (weights, opt_state, last, state, key), jnp.mean(losses)

        start = weights, optimizer.init(weights), observation, state, key
        return jax.lax.scan(update, start, jnp.arange(updates))

    return jax.jit(train)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--envs", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--updates", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for envs in options.envs:
        steps = envs * HORIZON * options.updates
        train, ratios = peer(envs, options.updates), []
        jax.block_until_ready(train(jax.random.key(0)))
        for i in range(options.rounds):
            began = time.perf_counter()
            jax.block_until_ready(train(jax.random.key(i)))
            peer_rate = steps / (time.perf_counter() - began)
            result = fragmenta.train("pqn", f"gymnax:{ENVIRONMENT}", num_envs=envs, total_steps=steps, seed=i)
            ours = result.summary["steps_per_second"]
            ratios.append(ours / peer_rate)
            print(f"{envs} environments: {ours:,.0f} steps/s, single file {peer_rate:,.0f}", flush=True)
        print(f"{envs} environments: {statistics.median(ratios):.2f}x", flush=True)
    for size in (10_000, 1_000_000):
        settings: dict[str, Any] = {"num_envs": 64, "buffer_size": size, "total_steps": 500_000, "batch_size": 128}
        result = fragmenta.train("dqn", f"gymnax:{ENVIRONMENT}", **settings)
        print(f"dqn, replay of {size:,} steps: {result.summary['steps_per_second']:,.0f} steps/s", flush=True)


if __name__ == "__main__":
    main()
