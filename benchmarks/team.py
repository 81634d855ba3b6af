"""MAPPO learns to cooperate: simple_spread with shared and separate parameters, and simple_tag.

Spread: mean return of the trained team's stochastic policy, on a scale from random (0%) to a scripted team (100%).
Tag: catches per episode of the trained chasers' stochastic policy against random chasers.
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

import fragmenta
from fragmenta.envs.particles import PUSHES, SimpleSpread, SimpleTag
from fragmenta.rl import fold_each, keys_by_index

CASES = {
    "spread-shared": (SimpleSpread(), fragmenta.MAPPO()),
    "spread-separate": (SimpleSpread(), fragmenta.MAPPO(shared=False, num_envs=128, total_steps=3_000_000)),
    "tag": (SimpleTag(), fragmenta.MAPPO(num_envs=128, gamma=0.95, entropy_cost=0.005, total_steps=800_000)),
}
EPISODES = 1_000
CATCH_REWARD = 10.0
"""Of every chaser, per step and chaser that touches the runner: return / 10 is the number of catches."""
NEAR_SCRIPTED, TIMES_RANDOM = 0.8, 3.0

Act = Callable[[fragmenta.World, jax.Array], jax.Array]
"""Actions [environments, agents] for a world, with a key per environment."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="fused")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--case", choices=CASES, action="append", help="one or more; all of them by default")
    options = parser.parse_args()
    failed = 0
    for name in options.case or CASES:
        env, algorithm = CASES[name]
        lowest = mean_return(env, partial(random_actions, env))
        highest = mean_return(env, partial(scripted_actions, env)) if isinstance(env, SimpleSpread) else None
        for seed in range(options.seeds):
            result = fragmenta.train(algorithm, env, policy=options.policy, seed=seed)
            trained = mean_return(env, partial(trained_actions, algorithm, env, result.params))
            if highest is not None:
                reached = (trained - lowest) / (highest - lowest)
                good = reached >= NEAR_SCRIPTED
                text = f"return {trained:.2f}, {reached:.1%} from random {lowest:.2f} to scripted {highest:.2f}"
            else:
                good = trained >= TIMES_RANDOM * lowest
                catches, by_chance = trained / CATCH_REWARD, lowest / CATCH_REWARD
                text = f"catches {catches:.2f} per episode, {catches / by_chance:.1f} times random {by_chance:.2f}"
            failed += not good
            run = f"{result.summary['total_steps']:,} steps in {result.summary['wall_seconds']:.0f} s"
            print(f"{name}, seed {seed}, {run}: {text}{'' if good else ' MISSED'}", flush=True)
    return 1 if failed else 0


def mean_return(env: fragmenta.TeamEnvironment, act: Act) -> float:
    """The mean return of EPISODES episodes, one per environment."""
    world_key, act_key = jax.random.split(jax.random.key(12_345))
    keys = keys_by_index(act_key, EPISODES)

    def tick(world: fragmenta.World, time: jax.Array) -> tuple[fragmenta.World, None]:
        return env.step(world, act(world, fold_each(keys, time)))[0], None

    def run(world: fragmenta.World) -> jax.Array:
        finished = jax.lax.scan(tick, world, jnp.arange(env.max_steps))[0].finished
        return jnp.sum(finished.returns) / jnp.sum(finished.episodes)

    return float(jax.jit(run)(env.reset(keys_by_index(world_key, EPISODES))))


def trained_actions(
    algorithm: fragmenta.MAPPO, env: fragmenta.TeamEnvironment, params: dict, world: fragmenta.World, keys: jax.Array
) -> jax.Array:
    return algorithm.act(env, params["policy"], world.observation, world.alive, keys)[0]


def random_actions(env: fragmenta.TeamEnvironment, _: fragmenta.World, keys: jax.Array) -> jax.Array:
    return jax.vmap(lambda key: jax.random.randint(key, (env.agents,), 0, env.action_space.n))(keys)


def scripted_actions(env: SimpleSpread, world: fragmenta.World, _: jax.Array) -> jax.Array:
    """Drive every agent to its landmark in the assignment with the least total distance, based on the true state."""
    return jax.vmap(partial(_drive, env))(world.state)


def _drive(env: SimpleSpread, state: object, look_ahead: int = 3, horizon: int = 6) -> jax.Array:
    """The first push of the three-push plan with the least cost over six steps, if other agents keep their velocity."""
    world, count = env.original(), env.agents
    position, velocity, landmarks = state.p_pos[:count], state.p_vel[:count], state.p_pos[count:]
    orders = jnp.asarray(list(itertools.permutations(range(count))))
    distance = jnp.linalg.norm(position[:, None] - landmarks, axis=-1)
    targets = landmarks[orders[jnp.argmin(distance[jnp.arange(count), orders].sum(axis=1))]]
    plans = jnp.asarray(list(itertools.product(range(len(PUSHES)), repeat=look_ahead)))
    pushes = world.accel[0] * world.dt * jnp.asarray(PUSHES)[plans]
    others = ~jnp.eye(count, dtype=bool)

    def cost(agent: jax.Array) -> jax.Array:
        place, speed = jnp.broadcast_to(position[agent], (len(plans), 2)), velocity[agent]
        total = jnp.zeros(len(plans))
        for step in range(horizon):
            place = place + world.dt * speed
            speed = (1 - world.damping) * speed + (pushes[:, step] if step < look_ahead else 0.0)
            gap = jnp.linalg.norm(place[:, None] - (position + world.dt * (step + 1) * velocity), axis=-1)
            touching = jnp.sum((gap < 2 * world.rad[0] + 0.02) & others[agent], axis=-1)
            # The weights of the reward: 0.5 per distance, and 0.5 for both agents of a collision, over all agents.
            total += 0.5 * jnp.linalg.norm(place - targets[agent], axis=-1) + touching / count
        return total

    return plans[jnp.argmin(jax.vmap(cost)(jnp.arange(count)), axis=1), 0]


if __name__ == "__main__":
    sys.exit(main())
