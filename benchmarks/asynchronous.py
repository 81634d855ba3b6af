"""Asynchronous fragments: A3C and IMPALA learn, a slow actor does not slow the others, runs leave nothing behind.

Run with `make bench WHAT=asynchronous`. Prints one line per check and exits with 1 if one fails.
"""

import dataclasses
import gc
import os
import sys
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fragmenta
from fragmenta import Algorithm, Cluster, Environment, stage
from fragmenta.engines import LocalEngine
from fragmenta.rl import keys_by_index
from fragmenta.runs.episode_statistics import best_return

ACTORS = 4
LEARNERS = {
    "A3C": (fragmenta.A2C(), "central_async"),
    "IMPALA": (fragmenta.IMPALA(), "single_learner_async"),
}
TOTAL_STEPS, SOLVED, SEEDS = 500_000, 475, 5


@dataclasses.dataclass(frozen=True)
class Tardy(Algorithm):
    """Actors that sleep, longer if they have environment 0; learning counts the rewards."""

    allows_lag = True

    seconds: float = 0.005
    slow_seconds: float = 0.005

    def init(self, env: Environment, key: jax.Array) -> dict[str, Any]:
        world = env.reset(keys_by_index(key, self.num_envs))
        return {"world": world, "weights": jnp.zeros(()), "index": jnp.arange(self.num_envs)}

    def params(self, state: dict[str, Any]) -> Any:
        return state["weights"]

    @stage
    def act(self, weights: jax.Array, index: jax.Array) -> jax.Array:
        def sleep(index: np.ndarray, _: np.ndarray) -> np.ndarray:
            time.sleep(self.slow_seconds if index[0] == 0 else self.seconds)
            return np.zeros(index.shape, np.int32)

        return jax.pure_callback(sleep, jax.ShapeDtypeStruct(index.shape, jnp.int32), index, weights)

    @stage
    def learn(self, weights: jax.Array, reward: jax.Array) -> jax.Array:
        return weights + jnp.mean(reward)

    def iterate(self, env: Environment, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        action = self.act(state["weights"], state["index"])
        world, transition = env.step(state["world"], action)
        weights = self.learn(state["weights"], transition.reward)
        return {"world": world, "weights": weights, "index": state["index"]}, {"weights": weights}


def cluster(replicas: int = ACTORS, max_lag: int | None = None) -> Cluster:
    return Cluster(("cpu:0", "cpu:1", "cpu:2"), replicas, max_lag=max_lag)


def batches_per_second(algorithm: Tardy, batches: int) -> dict[str, float]:
    """For each actor, the rate at which its batches are learned from."""
    result = fragmenta.train(
        algorithm,
        "CartPole-v1",
        policy="single_learner_async",
        cluster=cluster(),
        total_steps=batches * algorithm.num_envs // ACTORS,
    )
    seconds = result.metrics[-1]["seconds"]
    sources = [record["source"] for record in result.metrics]
    return {name: sources.count(name) / seconds for name in sorted(set(sources))}


def start_and_stop(times: int) -> tuple[list[str], list[float]]:
    """The threads left after that many runs, and the memory in MB after each run."""
    algorithm, env = Tardy(num_envs=8, seconds=0.0, slow_seconds=0.0), fragmenta.make("CartPole-v1")
    graph, memory = fragmenta.trace(algorithm, env), []
    for _ in range(times):
        plan = fragmenta.project(graph, "single_learner_async", cluster())
        leaves = jax.tree.leaves(algorithm.init(env, jax.random.key(0)))
        with LocalEngine(plan, deadline=60.0) as engine:
            engine.begin(leaves)
            assert len(list(engine.run(5))) == 5
        gc.collect()
        with open("/proc/self/statm") as file:
            memory.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
    return [t.name for t in threading.enumerate() if t.name.startswith("fragmenta-")], memory


def main() -> int:
    jax.config.update("jax_num_cpu_devices", 3)
    missed = 0

    def check(text: str, passed: bool) -> None:
        nonlocal missed
        missed += not passed
        print(text + ("" if passed else " MISSED"), flush=True)

    for name, (algorithm, policy) in LEARNERS.items():
        for seed in range(SEEDS):
            result = fragmenta.train(
                algorithm, "CartPole-v1", policy=policy, cluster=cluster(2), total_steps=TOTAL_STEPS, seed=seed
            )
            best, summary = best_return(result.metrics), result.summary
            lag = f"lag {summary['lag_mean']:.1f} on average, {summary['lag_max']} at most"
            text = f"{name} seed {seed}: best {best:.1f}, last {summary['return_mean']:.1f}, {lag}"
            check(f"{text}, {summary['steps_per_second']:,.0f} steps/s", best >= SOLVED)
        bounded = fragmenta.train(
            algorithm, "CartPole-v1", policy=policy, cluster=cluster(max_lag=2), total_steps=50_000
        )
        lags = [record["lag"] for record in bounded.metrics]
        dropped = bounded.summary["dropped"]
        check(f"{name} with max_lag 2: {len(lags)} batches, lag at most {max(lags)}, {dropped} dropped", max(lags) <= 2)
    even = batches_per_second(Tardy(num_envs=8), 1_000)
    uneven = batches_per_second(Tardy(num_envs=8, slow_seconds=0.05), 1_000)
    ratio = sum(uneven[f"actor[{i}]"] for i in range(1, ACTORS)) / sum(even[f"actor[{i}]"] for i in range(1, ACTORS))
    check(f"one of {ACTORS} actors slowed 10x: the others keep {ratio:.0%} of their throughput", ratio >= 0.8)
    threads, memory = start_and_stop(100)
    growth = memory[-1] - memory[19]
    check(f"100 starts and stops: threads left {threads or 'none'}", not threads)
    check(f"memory {memory[0]:.0f} MB after 1, {memory[19]:.0f} after 20, {memory[-1]:.0f} after 100", growth < 50)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
