"""The overhead of a run directory: checkpoints every ten iterations, TensorBoard and evaluation, against none of them.

Both variants do the same training, one right after the other in one process, for about the same time; the result is the
median ratio of these pairs. The order alternates between pairs, so that a machine that slows down favours neither.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import fragmenta


def rate(num_envs: int, seconds: float, speed: float, keeps: bool, folder: Path) -> float:
    """Environment steps per second in the second half of a run of about `seconds`."""
    algorithm = fragmenta.PPO(num_envs=num_envs)
    each = algorithm.steps_per_iteration
    iterations = max(40, round(seconds * speed / each))
    options = {
        "run_dir": folder,
        "options": fragmenta.RunOptions(
            saving=fragmenta.SaveOptions(checkpoint_every=10), evaluation=fragmenta.EvaluationOptions(eval_every=50)
        ),
    }
    result = fragmenta.train(algorithm, "CartPole-v1", total_steps=iterations * each, **(options if keeps else {}))
    half, last = result.metrics[len(result.metrics) // 2], result.metrics[-1]
    return (last["steps"] - half["steps"]) / (last["seconds"] - half["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 2048])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--pairs", type=int, default=12)
    options = parser.parse_args()
    for num_envs in options.num_envs:
        with tempfile.TemporaryDirectory() as folder:
            speed = rate(num_envs, 3.0, 50_000, False, Path(folder, "none"))
            pairs: list[tuple[float, float]] = []
            for i in range(options.pairs):
                order = (False, True) if i % 2 else (True, False)
                rates = {keeps: rate(num_envs, options.seconds, speed, keeps, Path(folder, f"{i}")) for keeps in order}
                pairs.append((rates[False], rates[True]))
        ratios = sorted(with_files / bare for bare, with_files in pairs)
        bare, with_files = (statistics.median(each) for each in zip(*pairs, strict=True))
        figure = f"{statistics.median(ratios):.3f}x ({ratios[0]:.3f} to {ratios[-1]:.3f} in {options.pairs} pairs)"
        print(f"{num_envs} envs: bare {bare:,.0f}, kept {with_files:,.0f} steps/s, {figure}", flush=True)


if __name__ == "__main__":
    main()
