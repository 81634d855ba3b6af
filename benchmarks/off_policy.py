"""SAC on Pendulum-v1 and DQN on CartPole-v1 beside Stable-Baselines3 and rejax, the sides in turns.

The same networks, batches and ratio of updates to steps on all sides: SAC 256 x 256, 256 steps per update, an update
per step; DQN 64 x 64, 32 steps per update, an update per four steps. Stable-Baselines3 has one environment, as is its
default; we and rejax have eight. It runs with one thread and with two: which is faster depends on the machine and on
the size of the networks. Ours also runs SAC with `--compute bfloat16`; its peers compute in float32 all the same.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax

import fragmenta
from cpu import HERE, start_peer
from environments import peers_python
from fragmenta.engines import LocalEngine
from off_policy_peer import DQN_SIZES, SAC_SIZES
from sides import ask

COMPUTE = {"sac": ("float32", "bfloat16"), "dqn": ("float32",)}


def ours(name: str, compute: str, seconds: float) -> float:
    """Environment steps per second in steady state, after learning has started."""
    sizes = SAC_SIZES if name == "sac" else DQN_SIZES
    settings: dict[str, Any] = {"num_envs": 8, "hidden": (sizes["width"],) * 2, "batch_size": sizes["batch"]}
    settings |= {"buffer_size": sizes["buffer"], "learning_starts": 1_000, "total_steps": 10**7, "compute": compute}
    if name == "sac":
        settings |= {"horizon": 1, "updates": 8, "max_grad_norm": float("inf")}  # its peers do not clip gradients
        algorithm, env = fragmenta.SAC(**settings), fragmenta.make("Pendulum-v1")
    else:
        algorithm, env = fragmenta.DQN(horizon=4, updates=8, n_step=1, **settings), fragmenta.make("CartPole-v1")
    plan = fragmenta.project(fragmenta.trace(algorithm, env), "fused", fragmenta.Cluster(("cpu:0",)))
    state = jax.tree.leaves(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)))
    warm_up = 2_000 // algorithm.steps_per_iteration
    with LocalEngine(plan) as engine:
        engine.begin(state)
        for _ in engine.run(warm_up):
            pass
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for report in engine.run(50):
                jax.device_get(report.metrics)
            done += 50
        return done * algorithm.steps_per_iteration / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    start_peer().kill()  # makes its virtual environment
    pythons = {
        "sb3-1": peers_python(),
        "sb3-2": peers_python(),
        "rejax": HERE / f".venv-rejax-{jax.__version__}/bin/python",
    }
    script = Path(__file__).with_name("off_policy_peer.py")
    print(f"jax {jax.__version__}")
    for name, types in COMPUTE.items():
        ratios: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.rounds):
            rates = {compute: ours(name, compute, options.seconds) for compute in types}
            print(f"{name}: ours {', '.join(f'{c} {rate:,.0f}' for c, rate in rates.items())} steps/s", flush=True)
            for library, python in pythons.items():
                peer = ask([python, script, library, name, str(options.seconds)], deadline=600)["rate"]
                print(f"{name}: {library} {peer:,.0f} steps/s", flush=True)
                for compute, rate in rates.items():
                    ratios.setdefault((compute, library), []).append(rate / peer)
        for (compute, library), values in ratios.items():
            spread = f"{min(values):.2f} to {max(values):.2f}"
            print(f"{name} {compute}: {statistics.median(values):.2f}x {library} ({spread})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
