"""SAC, TD3 and DDPG beside Stable-Baselines3 at the same steps: the return of the trained actor without exploration.

    python benchmarks/continuous.py [--env HalfCheetah-v5] [--steps 50000] [--seeds 3] [--jobs 1] [--out FILE]

The same networks, batches, learning rate, first random steps and one update per step on both sides; we step eight
environments, Stable-Baselines3 one. Both actors are then run by the same loop, ten episodes each. With `--here` the
peers are those of this interpreter instead of a virtual environment that is created on first use.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ALGORITHMS = ("sac", "td3", "ddpg")
RATE, WIDTH, BATCH, RANDOM_STEPS = 1e-3, 256, 256, 1_000


def score(model: Any, name: str) -> float:
    """The mean return of ten episodes without exploration."""
    import gymnasium

    env, returns = gymnasium.make(name), []
    for episode in range(10):
        observation, _ = env.reset(seed=10_000 + episode)
        total, ended = 0.0, False
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return statistics.mean(returns)


def ours(name: str, env: str, steps: int, seed: int) -> Any:
    import fragmenta
    from fragmenta.algorithms.named import algorithm_from

    settings = {"learning_rate": RATE, "hidden": (WIDTH, WIDTH), "batch_size": BATCH, "learning_starts": RANDOM_STEPS}
    settings |= {"num_envs": 8, "horizon": 1, "updates": 8, "anneal": False, "total_steps": steps}
    return fragmenta.train(algorithm_from(name, settings), f"gymnasium:{env}", seed=seed)


def sb3(name: str, env: str, steps: int, seed: int) -> Any:
    import stable_baselines3
    import torch

    torch.set_num_threads(1)  # faster than more for networks of this size
    kind = getattr(stable_baselines3, name.upper())
    sizes = {"learning_rate": RATE, "batch_size": BATCH, "learning_starts": RANDOM_STEPS, "train_freq": 1}
    noise = {}
    if name != "sac":
        import gymnasium
        import numpy as np
        from stable_baselines3.common.noise import NormalActionNoise

        count = int(np.prod(gymnasium.make(env).action_space.shape))  # pyright: ignore
        noise = {"action_noise": NormalActionNoise(np.zeros(count), 0.1 * np.ones(count))}
    layers = {"policy_kwargs": {"net_arch": [WIDTH, WIDTH]}}
    model = kind("MlpPolicy", env, seed=seed, device="cpu", gradient_steps=1, **sizes, **noise, **layers)
    return model.learn(steps)


SIDES = {"ours": ours, "sb3": sb3}


def one(side: str, name: str, env: str, steps: int, seed: int, python: Path | str) -> dict[str, Any]:
    """One run in a process of its own."""
    command = [python, __file__, "--one", side, name, env, str(steps), str(seed)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    run = json.loads(done.stdout.splitlines()[-1])
    print(f"{name} {side} seed {seed}: {run['return']:,.0f}", flush=True)
    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=5)
    options = parser.parse_args()
    if options.one:
        side, name, env, steps, seed = options.one
        result = SIDES[side](name, env, int(steps), int(seed))
        print(json.dumps({"side": side, "algorithm": name, "seed": int(seed), "return": score(result, env)}))
        return
    pythons: dict[str, Path | str] = dict.fromkeys(SIDES, sys.executable)
    if not options.here:
        from environments import peers_python

        pythons["sb3"] = peers_python()
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [
            pool.submit(one, side, name, options.env, options.steps, seed, pythons[side])
            for side in reversed(SIDES)
            for name in ALGORITHMS
            for seed in range(options.seeds)
        ]
        found = [run.result() for run in runs]
    if options.out:
        options.out.write_text(json.dumps(found))
    for name in ALGORITHMS:
        sides = {s: [r["return"] for r in found if (r["side"], r["algorithm"]) == (s, name)] for s in SIDES}
        words = "; ".join(f"{s} {' '.join(f'{x:,.0f}' for x in values)}" for s, values in sides.items())
        ratio = statistics.mean(sides["ours"]) / statistics.mean(sides["sb3"])
        print(f"{options.env} {name}, {options.steps:,} steps: {words}; means {ratio:.2f}x", flush=True)


if __name__ == "__main__":
    main()
