"""The overhead of splitting on one device: two actor replicas and a learner, unmerged, against `fused`.

Run with `make bench WHAT=split` (on a GPU: `PYTHONPATH=src python3 benchmarks/split.py 16384`). Prints the ratio of
steps per second, median of several windows, and where time goes: the timeline of an iteration with one segment at a
time.
"""

import itertools
import statistics
import sys
import threading
import time
from typing import Any

import jax

import fragmenta
from fragmenta.engines import LocalEngine
from fragmenta.engines.hardware import local_cluster

WINDOWS, ITERATIONS = 3, 64
POLICIES = {"fused": 1, "single_learner_coarse": 2}


def engine_of(policy: str, replicas: int, num_envs: int, iterations: int) -> tuple[LocalEngine, int]:
    algorithm = fragmenta.PPO(num_envs=num_envs, minibatches=4, total_steps=num_envs * 128 * iterations)
    env = fragmenta.make("CartPole-v1")
    plan = fragmenta.project(fragmenta.trace(algorithm, env), policy, local_cluster(replicas), merge=False)
    state = jax.tree.leaves(jax.jit(lambda key: algorithm.init(env, key))(jax.random.key(0)))
    engine = LocalEngine(plan)
    engine.begin(state)
    return engine, algorithm.steps_per_iteration


def steps_per_second(policy: str, replicas: int, num_envs: int) -> float:
    iterations = ITERATIONS * (WINDOWS + 1)
    engine, steps = engine_of(policy, replicas, num_envs, iterations)
    marks = []
    with engine:
        for report in engine.run(iterations):
            jax.device_get(report.metrics)
            if (report.iteration + 1) % ITERATIONS == 0:
                marks.append(time.perf_counter())
    return ITERATIONS * steps / statistics.median(b - a for a, b in itertools.pairwise(marks))


def timeline(policy: str, replicas: int, num_envs: int) -> list[tuple[str, str, float, float]]:
    """Worker, segment, start and end in milliseconds, for an iteration in steady state."""
    engine, _ = engine_of(policy, replicas, num_envs, 12)
    events: list[tuple[str, str, float, float]] = []
    lock = threading.Lock()

    def watched(label: str, call: Any) -> Any:
        def run(*arguments: Any) -> Any:
            jax.block_until_ready(arguments)
            with lock:  # one at a time, so that no segment's time includes waiting for another on the same device
                started = time.perf_counter()
                results = jax.block_until_ready(call(*arguments))
                name = threading.current_thread().name.removeprefix("fragmenta-")
                events.append((name, label, started, time.perf_counter()))
            return results

        return run

    for deployment in {id(worker.deployment): worker.deployment for worker in engine._workers}.values():
        steps = {id(step): step for step in deployment.schedule.steps}
        for key, call in list(deployment.compiled.items()):
            deployment.compiled[key] = watched(getattr(steps.get(key), "label", "segment in a loop"), call)
    ends = []
    with engine:
        for report in engine.run(12):
            jax.device_get(report.metrics)
            ends.append(time.perf_counter())
    start, end = ends[-3], ends[-2]
    inside = sorted((e for e in events if start <= e[2] < end), key=lambda e: e[2])
    zero = inside[0][2]
    return [(worker, label, 1e3 * (a - zero), 1e3 * (b - zero)) for worker, label, a, b in inside]


def main() -> None:
    num_envs = int(sys.argv[1]) if len(sys.argv) > 1 else 2_048
    device = jax.devices()[0].device_kind
    rates = {policy: steps_per_second(policy, replicas, num_envs) for policy, replicas in POLICIES.items()}
    whole, split = rates.values()
    print(f"jax {jax.__version__} on {device}, {num_envs} envs")
    print(
        f"fused {whole / 1e6:.2f} M steps/s; actor x2 and learner, unmerged, {split / 1e6:.2f} M: {split / whole:.2f}x"
    )
    events = timeline("single_learner_coarse", 2, num_envs)
    for worker, label, start, end in events:
        print(f"{start:8.2f} to {end:8.2f} ms  {end - start:7.2f} ms  {worker:10} {label}")
    alone = num_envs * 128 / whole * 1e3
    print(f"one iteration of fused takes {alone:.2f} ms")


if __name__ == "__main__":
    main()
