"""64 trials of PPO on CartPole as one sweep, compared with as many runs of the command one after the other.

`python benchmarks/sweep.py [STEPS]`: the sweep and a single run take turns, compiled programs cached in both; figures
are medians of rounds, and 64 runs are extrapolated from single ones.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRIALS, ROUNDS = 64, 3
COMMAND = [sys.executable, "-m", "fragmenta.cli.main"]


def seconds(*arguments: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        subprocess.run(
            [*COMMAND, *arguments, "--run-dir", str(Path(folder) / "run"), "--json"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.monotonic() - started


def main() -> None:
    steps = sys.argv[1] if len(sys.argv) > 1 else "100000"
    run = "train", "ppo", "CartPole-v1", "--total-steps", steps
    search = "--search", "learning_rate=log:1e-4:1e-2", "entropy_cost=0,0.01", "--trials", str(TRIALS)
    whole = "sweep", *run[1:], *search
    for warm_up in (run, whole):
        seconds(*warm_up)
    pairs = [(seconds(*run), seconds(*whole)) for _ in range(ROUNDS)]
    single, together = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"{TRIALS} trials of {int(steps):,} steps: {together:.1f} s as one sweep; one run {single:.1f} s, so {TRIALS} "
        f"runs {TRIALS * single:.0f} s (extrapolated): {TRIALS * single / together:.1f}x, medians of {ROUNDS} rounds"
    )


if __name__ == "__main__":
    main()
