"""What keeping a run costs: checkpoints every ten iterations, TensorBoard and evaluation, against none of them.

Both train the same in turn, in one process, for about as long; the figure is the ratio of the medians.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import fragmenta


def rate(num_envs: int, seconds: float, speed: float, keeps: bool, folder: Path) -> float:
    """Environment steps per second of the second half of a run that takes about so long."""
    algorithm = fragmenta.PPO(num_envs=num_envs)
    each = algorithm.steps_per_iteration
    iterations = max(40, round(seconds * speed / each))
    kept = {
        "run_dir": folder,
        "save_options": fragmenta.SaveOptions(checkpoint_every=10),
        "evaluation": fragmenta.EvaluationOptions(eval_every=50),
    }
    found = fragmenta.train(algorithm, "CartPole-v1", total_steps=iterations * each, **(kept if keeps else {}))
    half, last = found.metrics[len(found.metrics) // 2], found.metrics[-1]
    return (last["steps"] - half["steps"]) / (last["seconds"] - half["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 2048])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for num_envs in options.num_envs:
        with tempfile.TemporaryDirectory() as folder:
            speed = rate(num_envs, 3.0, 50_000, False, Path(folder, "none"))
            rates: dict[bool, list[float]] = {False: [], True: []}
            for i in range(options.rounds):
                for keeps, each in rates.items():
                    each.append(rate(num_envs, options.seconds, speed, keeps, Path(folder, f"{i}")))
        bare, kept = (statistics.median(each) for each in rates.values())
        print(f"{num_envs} envs: bare {bare:,.0f}, kept {kept:,.0f} steps/s, {kept / bare:.3f}x", flush=True)


if __name__ == "__main__":
    main()
