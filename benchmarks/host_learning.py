"""PPO on Gymnasium's CartPole-v1 and HalfCheetah-v5 under three distribution policies with two replicas, three seeds.

    python benchmarks/host_learning.py [--envs HalfCheetah-v5] [--seeds 3] [--jobs 1] [--out curves.json]
    python benchmarks/host_learning.py --draw curves.json docs/halfcheetah.png

CartPole must exceed 475, HalfCheetah 1,440 over its last hundred episodes, which CleanRL documents for its PPO after a
million steps.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CARTPOLE = {"num_envs": 8, "total_steps": 300_000}
HALFCHEETAH = {
    "num_envs": 8,
    "horizon": 256,
    "minibatches": 32,
    "epochs": 10,
    "learning_rate": 3e-4,
    "entropy_cost": 0.0,
}
HALFCHEETAH |= {"normalize_observations": True, "normalize_rewards": True, "total_steps": 1_000_000}
SETTINGS: dict[str, tuple[dict[str, Any], float]] = {
    "CartPole-v1": (CARTPOLE, 475.0),
    "HalfCheetah-v5": (HALFCHEETAH, 1_440.0),
}
POLICIES = ("single_learner_coarse", "single_learner_fine", "multi_learner")


def train_here(env: str, policy: str, seed: int) -> None:
    """One run in this process; prints its learning curve and result as JSON."""
    import fragmenta
    from fragmenta.runs.episode_statistics import best_return

    algorithm = fragmenta.PPO(**SETTINGS[env][0])
    cluster = fragmenta.Cluster(("cpu:0", "cpu:1"), replicas=2)
    result = fragmenta.train(algorithm, f"gymnasium:{env}", policy=policy, seed=seed, cluster=cluster)
    last = result.summary["return_mean"]
    curve = [(r["steps"], r["return_mean"]) for r in result.metrics if r["return_mean"] is not None]
    found = best_return(result.metrics) if env == "CartPole-v1" else last
    rate = result.summary["steps_per_second"]
    print(json.dumps({"found": found, "last": last, "steps_per_second": rate, "curve": curve}))


def train(env: str, policy: str, seed: int) -> dict[str, Any]:
    """The same in a separate process with two CPU devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    command = [sys.executable, __file__, "--one", env, policy, str(seed)]
    completed = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    run, goal = json.loads(completed.stdout.splitlines()[-1]), SETTINGS[env][1]
    run |= {"env": env, "policy": policy, "seed": seed, "reached": run["found"] >= goal}
    verdict = "reached" if run["reached"] else "MISSED"
    print(f"{env} {policy} seed {seed}: {run['found']:,.0f} (goal {goal:,.0f}: {verdict}), "
          f"last {run['last']:,.0f}, {run['steps_per_second']:,.0f} steps/s", flush=True)  # fmt: skip
    return run


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Draw the learning curves, one panel per distribution policy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(POLICIES), figsize=(11, 3.4), sharey=True)
    for axis, policy in zip(axes, POLICIES, strict=True):
        for run in (run for run in runs if run["policy"] == policy):
            axis.plot(*zip(*run["curve"], strict=True), label=f"seed {run['seed']}", lw=1)
        axis.axhline(SETTINGS[runs[0]["env"]][1], color="black", lw=0.8, ls=":")
        axis.set_title(policy)
        axis.set_xlabel("environment steps")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("episode return")
    axes[0].legend()
    figure.suptitle(f"PPO on gymnasium:{runs[0]['env']}")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--envs", nargs="+", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, help="keep the curves as JSON")
    parser.add_argument("--one", nargs=3, metavar=("ENV", "POLICY", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("JSON", "PNG"), help="draw curves that were kept")
    options = parser.parse_args()
    if options.one:
        train_here(options.one[0], options.one[1], int(options.one[2]))
        return
    if options.draw:
        draw(json.loads(options.draw[0].read_text()), options.draw[1])
        return
    cases = [(env, policy, seed) for env in options.envs for policy in POLICIES for seed in range(options.seeds)]
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = list(pool.map(lambda case: train(*case), cases))
    if options.out:
        options.out.write_text(json.dumps(runs))
    sys.exit(0 if all(run["reached"] for run in runs) else 1)


if __name__ == "__main__":
    main()
