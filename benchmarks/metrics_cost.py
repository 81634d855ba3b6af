"""The overhead of metrics: runs that write all of them at every iteration, against runs that write none.

Run with `make bench WHAT=metrics_cost`. The two take turns, so that other load on the machine affects both. Prints the
ratio of steps per second, median of several pairs; wandb (offline) and mlflow are included if they are installed.
"""

import argparse
import importlib.util
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import jax

import fragmenta
from fragmenta.runs.sinks import SINKS

SETUPS: dict[str, dict[str, Any]] = {
    "fused": {"policy": "fused", "merge": True},
    "split in two": {"policy": "single_learner_coarse", "merge": False},
}


def rate(steps: int, run_dir: Path | None, sinks: tuple[str, ...], setup: dict[str, Any]) -> float:
    algorithm = fragmenta.PPO(total_steps=steps)
    result = fragmenta.train(
        algorithm,
        "CartPole-v1",
        run_dir=run_dir,
        policy=setup["policy"],
        options=fragmenta.RunOptions(sinks=sinks, merge=setup["merge"]),
    )
    return result.summary["steps_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=500_000)
    options = parser.parse_args()
    os.environ.setdefault("WANDB_MODE", "offline")
    sinks = tuple(name for name, (package, _) in SINKS.items() if importlib.util.find_spec(package))
    print(
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}; metrics.jsonl and {', '.join(sinks)} against nothing"
    )
    for name, setup in SETUPS.items():
        with tempfile.TemporaryDirectory() as folder:
            rate(options.steps // 10, Path(folder, "first"), sinks, setup)  # compile and import
            ratios = []
            for i in range(options.pairs):
                order = (True, False) if i % 2 else (False, True)
                rates = {on: rate(options.steps, Path(folder, str(i)) if on else None, sinks, setup) for on in order}
                ratios.append(rates[True] / rates[False])
                print(f"{name}: {rates[True]:,.0f} with, {rates[False]:,.0f} without: {ratios[-1]:.3f}", flush=True)
        cost = 1 - statistics.median(ratios)
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"{name}: metrics cost {cost:.1%} of the steps per second, median of {options.pairs} pairs ({spread})")


if __name__ == "__main__":
    main()
