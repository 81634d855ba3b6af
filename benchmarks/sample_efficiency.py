"""How many more steps a lag takes to learn, and smaller or larger batches: steps until the mean return of 100 episodes.

Run with `make bench WHAT=sample_efficiency`; `ARGS=ppo` for one algorithm. The planner's table in
src/fragmenta/planner/efficiency.py and that in docs/planner.md are from here. Everything on CartPole-v1.
"""

import argparse
import statistics

import jax

import fragmenta
from fragmenta import Cluster
from fragmenta.runs.episode_statistics import RecentEpisodes

ENVIRONMENT, GOAL, MOST_STEPS = "CartPole-v1", 400.0, 500_000
ENVS, SEEDS = 16, 5
DEVICES = ("cpu:0", "cpu:1")
LAGS = (
    ("lag 0", "single_learner_coarse", Cluster(DEVICES, 1)),
    ("lag 1", "single_learner_coarse", Cluster(DEVICES, 1, lag=1)),
    ("asynchronous x2", "single_learner_async", Cluster(DEVICES, 2)),
    ("asynchronous x4", "single_learner_async", Cluster(DEVICES, 4)),
)
BATCHES = (4, 8, 32, 64)
"""Environments of the plain program, whose number times the horizon is the batch of an iteration."""


def steps_needed(algorithm: str, policy: str, cluster: Cluster, envs: int, seed: int) -> tuple[int, float]:
    """The steps until the goal, or all if it is not reached; and the mean lag."""
    result = fragmenta.train(
        algorithm,
        ENVIRONMENT,
        policy=policy,
        cluster=cluster,
        num_envs=envs,
        total_steps=MOST_STEPS,
        seed=seed,
        stop_at_return=GOAL,
        progress=False,
    )
    recent = RecentEpisodes()
    for record in result.metrics:
        if record["episodes"]:
            recent.add(record["episodes"], record["episodes"] * record["return_mean"])
        if recent.has_enough_episodes and (recent.return_mean or 0.0) >= GOAL:
            return record["steps"], result.summary.get("lag_mean") or 0.0
    return MOST_STEPS, result.summary.get("lag_mean") or 0.0


def row(algorithm: str, what: str, policy: str, cluster: Cluster, envs: int, base: float | None) -> float:
    """Train with every seed, print a row of the table, and return the geometric mean."""
    found = [steps_needed(algorithm, policy, cluster, envs, seed) for seed in range(SEEDS)]
    steps, lag = sorted(number for number, _ in found), statistics.fmean(lag for _, lag in found)
    mean = statistics.geometric_mean(steps)
    reached = f"{sum(number < MOST_STEPS for number in steps)} of {SEEDS}"
    cells = f"{mean:,.0f} | {steps[0]:,} to {steps[-1]:,} | {reached} | {mean / (base or mean):.2f}"
    print(f"| `{algorithm}` | {envs} | {what} | {lag:.1f} | {cells} |", flush=True)
    return mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithms", nargs="*", default=["ppo", "impala", "a2c"])
    jax.config.update("jax_num_cpu_devices", len(DEVICES))
    print(
        "| algorithm | environments | how | mean lag | steps, geometric mean | range | reached | of those without lag |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for algorithm in parser.parse_args().algorithms:
        base = None
        for what, policy, cluster in LAGS:
            mean = row(algorithm, what, policy, cluster, ENVS, base)
            base = base or mean
        for envs in BATCHES:
            row(algorithm, "lag 0", "fused", Cluster(DEVICES[:1], 1), envs, base)


if __name__ == "__main__":
    main()
