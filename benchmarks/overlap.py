"""The gain of double buffering: training on the host with one actor replica, and with two that alternate.

While one half of the environments steps, the actions of the other half are computed. Both variants take turns in one
process; the result is the ratio of the medians. It needs spare cores: use `taskset` to see the effect of fewer.
"""

import argparse
import os
import statistics

import fragmenta
from sides import HORIZON, MINIBATCHES, steady_rate


def rate(env: str, num_envs: int, replicas: int, iterations: int) -> float:
    """Environment steps per second in steady state."""
    algorithm = fragmenta.PPO(num_envs=num_envs, horizon=HORIZON, epochs=4, minibatches=MINIBATCHES)
    cluster = fragmenta.Cluster(("cpu:0",), replicas)
    result = fragmenta.train(algorithm, env, cluster=cluster, total_steps=iterations * num_envs * HORIZON)
    return steady_rate([(record["seconds"], record["steps"]) for record in result.metrics])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="gymnasium:HalfCheetah-v5")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.env}, {len(os.sched_getaffinity(0))} cores, median of {options.rounds} rounds")
    for num_envs in options.num_envs:
        rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(options.rounds):
            for replicas, each in rates.items():
                each.append(rate(options.env, num_envs, replicas, options.iterations))
        one, two = (statistics.median(each) for each in rates.values())
        print(f"{num_envs} envs: one replica {one:,.0f}, two {two:,.0f} steps/s, {two / one:.2f}x", flush=True)


if __name__ == "__main__":
    main()
