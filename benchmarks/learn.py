"""PPO learns with every seed: CartPole-v1 to 475 within 500,000 steps, Pendulum-v1 to -300 within 1,000,000."""

import sys

import fragmenta
from fragmenta.runs.episode_statistics import best_return

PENDULUM = fragmenta.PPO(
    num_envs=64, horizon=64, epochs=10, minibatches=8, gamma=0.95, entropy_cost=0.0, clip=0.2, learning_rate=1e-3
)


def main() -> int:
    failed = 0
    for name, algorithm, env, steps, goal in (
        ("float32", fragmenta.PPO(), "CartPole-v1", 500_000, 475.0),
        ("bfloat16", fragmenta.PPO(compute="bfloat16"), "CartPole-v1", 500_000, 475.0),
        ("float32", PENDULUM, "Pendulum-v1", 1_000_000, -300.0),
    ):
        # Steps are rounded to whole iterations; stay within the limit.
        whole = steps // algorithm.steps_per_iteration * algorithm.steps_per_iteration
        results = [fragmenta.train(algorithm, env, total_steps=whole, seed=seed) for seed in range(5)]
        best = [best_return(result.metrics) for result in results]
        returns = ", ".join(f"{b:.1f} ({r.summary['return_mean']:.1f})" for b, r in zip(best, results, strict=True))
        reached = sum(value >= goal for value in best)
        print(f"{env} {name}, {whole:,} steps, best (last): {returns}; {reached} of 5 reach {goal:g}", flush=True)
        failed += 5 - reached
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
