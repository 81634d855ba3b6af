"""Steps per second of this version against another checkout of the project, to find regressions.

Run with `python benchmarks/versions.py PATH_TO_OTHER_CHECKOUT [--rounds 3] [--only NAME ...]`. The sides take turns,
each in a separate process; prints the ratio of each round (this version to the other) and their median. On a machine
with a GPU, the GPU cases are run.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
CPU_CASES = {
    "fused, 64 envs": ("fused", 1, 1, 64, "float32"),
    "fused, 2,048 envs": ("fused", 1, 1, 2_048, "float32"),
    "coarse x2 and learner, 2,048 envs": ("single_learner_coarse", 1, 2, 2_048, "float32"),
    "fine, 2,048 envs": ("single_learner_fine", 1, 1, 2_048, "float32"),
    "fused on 2 devices, 64 envs": ("fused", 2, 2, 64, "float32"),
    "fused on 2 devices, 2,048 envs": ("fused", 2, 2, 2_048, "float32"),
    "fused on 8 devices, 64 envs": ("fused", 8, 8, 64, "float32"),
    "fused on 8 devices, 2,048 envs": ("fused", 8, 8, 2_048, "float32"),
}
GPU_CASES = {
    "fused, 2,048 envs": ("fused", 1, 1, 2_048, "float32"),
    "fused, 16,384 envs": ("fused", 1, 1, 16_384, "float32"),
    "fused, 16,384 envs, bfloat16": ("fused", 1, 1, 16_384, "bfloat16"),
    "coarse x2 and learner, 16,384 envs": ("single_learner_coarse", 1, 2, 16_384, "float32"),
}


def child(policy: str, devices: int, replicas: int, num_envs: int, compute: str, seconds: float) -> None:
    """Print the steps per second of one case: the median of five windows."""
    import jax

    import fragmenta
    from fragmenta.engines import LocalEngine

    kind = jax.devices()[0].platform
    algorithm = fragmenta.PPO(num_envs=num_envs, minibatches=4, compute=compute, total_steps=10**9)
    env = fragmenta.make("CartPole-v1")
    cluster = fragmenta.Cluster(tuple(f"{kind}:{i}" for i in range(devices)), replicas)
    plan = fragmenta.project(fragmenta.trace(algorithm, env), policy, cluster, merge=False)
    state = jax.tree.leaves(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)))
    rates = []
    with LocalEngine(plan) as engine:
        engine.begin(state)
        count = 2
        while True:  # until launches have grown and a window takes long enough
            started = time.perf_counter()
            list(engine.run(count))
            if (elapsed := time.perf_counter() - started) > seconds / 5:
                break
            count *= 2
        for _ in range(5):
            started = time.perf_counter()
            list(engine.run(count))
            elapsed = time.perf_counter() - started
            rates.append(count * algorithm.steps_per_iteration / elapsed)
        engine.finish()
    print(statistics.median(rates))


def rate(checkout: Path, case: tuple[str, int, int, int, str], seconds: float) -> float:
    """Steps per second of a checkout, measured in a separate process."""
    flags = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={case[1]}"
    path = os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, str(checkout), "--child", *map(str, case), str(seconds)]
    completed = subprocess.run(
        command, env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": path}, capture_output=True, text=True
    )
    if completed.returncode:
        raise SystemExit(completed.stderr)
    return float(completed.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="per side and round, about")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--gpu", action="store_true", help="the cases of a GPU")
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        policy, devices, replicas, num_envs, compute, seconds = options.child
        child(policy, int(devices), int(replicas), int(num_envs), compute, float(seconds))
        return
    for name, case in (GPU_CASES if options.gpu else CPU_CASES).items():
        if options.only and not any(word in name for word in options.only):
            continue
        ratios, rates = [], []
        for i in range(options.rounds):
            sides = [HERE, options.other] if i % 2 else [options.other, HERE]
            round_rates = {side: rate(side, case, options.seconds) for side in sides}
            ratios.append(round_rates[HERE] / round_rates[options.other])
            rates.append(round_rates[HERE])
        sorted_ratios = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
        median = statistics.median(rates)
        print(f"{name}: {statistics.median(ratios):.2f}x ({sorted_ratios}), {median / 1e3:,.0f} k steps/s", flush=True)


if __name__ == "__main__":
    main()
