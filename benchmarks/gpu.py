"""Environment steps per second of end-to-end training on one GPU, in float32 and bfloat16, with and without the kernel.

Run with `make bench WHAT=gpu` where JAX has a GPU. Prints one line per case: the median of several windows of a run in
steady state (without compile time), the ratio to the same run with layer-by-layer networks in XLA, and the mean return
at the end, to reveal a fast program that learns nothing.
"""

import itertools
import statistics
import time

import jax

import fragmenta
from fragmenta import nn
from fragmenta.engines import LocalEngine
from fragmenta.engines.hardware import local_cluster
from fragmenta.runs.episode_statistics import RecentEpisodes

WINDOWS, ITERATIONS = 3, 64
LAYER_BY_LAYER = 10**12


def steps_per_second(num_envs: int, compute: str, kernel_rows: int) -> tuple[float, float]:
    nn.KERNEL_ROWS = kernel_rows
    jax.clear_caches()
    iterations = ITERATIONS * (WINDOWS + 1)
    algorithm = fragmenta.PPO(
        num_envs=num_envs, minibatches=4, compute=compute, total_steps=num_envs * 128 * iterations
    )
    env = fragmenta.make("CartPole-v1")
    # A window has the maximal number of iterations of a launch: once launches have grown, it contains whole ones.
    plan = fragmenta.project(fragmenta.trace(algorithm, env), "fused", local_cluster())
    state = jax.tree.leaves(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)))
    position = {name: i for i, name in enumerate(plan.graph.metric_names)}
    episodes, marks = RecentEpisodes(), []
    with LocalEngine(plan) as engine:
        engine.begin(state)
        for report in engine.run(iterations):
            metrics = jax.device_get(report.metrics)
            episodes.add(int(metrics[position["finished_episodes"]]), float(metrics[position["finished_returns"]]))
            if (report.iteration + 1) % ITERATIONS == 0:
                marks.append(time.perf_counter())
    windows = [b - a for a, b in itertools.pairwise(marks)]
    return ITERATIONS * algorithm.steps_per_iteration / statistics.median(windows), episodes.return_mean or 0.0


def main() -> None:
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    usual = nn.KERNEL_ROWS
    for num_envs in (2_048, 16_384):
        for compute in ("float32", "bfloat16"):
            rate, mean_return = steps_per_second(num_envs, compute, usual)
            plain, _ = steps_per_second(num_envs, compute, LAYER_BY_LAYER)
            print(
                f"{num_envs:>6} envs {compute:>8}: {rate / 1e6:6.1f} M steps/s, {rate / plain:.2f}x layer by layer "
                f"({plain / 1e6:.1f} M), return {mean_return:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
