"""PPO on Gymnasium's CartPole-v1 and HalfCheetah-v5, three seeds each, under three policies, as a user would run it.

    python benchmarks/host_learning.py [--envs HalfCheetah-v5] [--seeds 3] [--picture docs/halfcheetah.png]

CartPole must pass 475, HalfCheetah 1,440: what CleanRL documents for its PPO at a million steps.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fragmenta.training.episodes import best_return

CARTPOLE = ["--num-envs", "8", "--total-steps", "300000"]
HALFCHEETAH = [
    "--num-envs",
    "8",
    "--horizon",
    "256",
    "--minibatches",
    "32",
    "--epochs",
    "10",
    "--learning-rate",
    "3e-4",
]
HALFCHEETAH += ["--entropy-cost", "0", "--normalize-observations", "--normalize-rewards", "--total-steps", "1000000"]
SETTINGS = {"CartPole-v1": (CARTPOLE, 475.0), "HalfCheetah-v5": (HALFCHEETAH, 1_440.0)}
POLICIES = {
    "single_learner_coarse": ["--replicas", "2"],
    "single_learner_fine": ["--replicas", "2"],
    "multi_learner": ["--replicas", "2", "--cpu-devices", "2"],
}


def train(env: str, policy: str, seed: int, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    run = folder / f"{env}-{policy}-{seed}"
    command = [sys.executable, "-m", "fragmenta.cli.main", "train", "ppo", f"gymnasium:{env}", *SETTINGS[env][0]]
    command += ["--policy", policy, *POLICIES[policy], "--seed", str(seed), "--run-dir", str(run), "--json"]
    subprocess.run(command, check=True, capture_output=True)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return records, json.loads((run / "summary.json").read_text())


def draw(curves: dict[str, list[list[dict[str, Any]]]], path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(11, 3.4), sharey=True)
    for axis, (policy, runs) in zip(axes, curves.items(), strict=True):
        for seed, records in enumerate(runs):
            shown = [record for record in records if record["return_mean"] is not None]
            axis.plot([r["steps"] for r in shown], [r["return_mean"] for r in shown], label=f"seed {seed}", lw=1)
        axis.set_title(policy)
        axis.set_xlabel("environment steps")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("episode return")
    axes[0].legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--envs", nargs="+", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", type=Path, help="where to draw the curves of the last environment")
    options = parser.parse_args()
    reached = True
    with tempfile.TemporaryDirectory() as folder:
        for env in options.envs:
            goal, curves = SETTINGS[env][1], {}
            for policy in POLICIES:
                curves[policy] = []
                for seed in range(options.seeds):
                    records, summary = train(env, policy, seed, Path(folder))
                    curves[policy].append(records)
                    # HalfCheetah has few episodes, all of the same length: the last hundred count.
                    found = best_return(records) if env == "CartPole-v1" else summary["return_mean"]
                    reached &= found >= goal
                    print(f"{env} {policy} seed {seed}: {found:,.0f} (goal {goal:,.0f}: "
                          f"{'reached' if found >= goal else 'MISSED'}) at {summary['steps_per_second']:,.0f} steps/s, "
                          f"last {summary['return_mean']:,.0f}", flush=True)  # fmt: skip
            if options.picture:
                draw(curves, options.picture, f"PPO on gymnasium:{env}")
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
