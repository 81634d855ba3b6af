"""A large replay: what it costs to train with 4 GB of frames, against 40 MB.

Everything is measured with replays that are full. Speed: both sides do the same training, one right after the other in
one process, with the same batches and another length of the replay; the result is the median ratio of these rounds.
Memory: the largest resident size of a process that trains with the large replay, less that of one with the small
replay, against the size of the large one; also for the shards of `replay_async`. Saving: how long a checkpoint with the
replay (`--save-replay`) takes to write, and to read. Recovery: how long training takes to go on after the learner, and
after the shard that owns the replay was killed.
"""

import argparse
import dataclasses
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fragmenta
from fragmenta.engines import ENGINES, ProcessLocation, Setup
from fragmenta.engines.in_place import in_place
from fragmenta.engines.initial import initial_state
from fragmenta.envs import Stack
from fragmenta.runs.checkpoints import Checkpoint, CheckpointFolder
from fragmenta.runs.state import to_arrays

PIXELS = 4096


@dataclasses.dataclass(frozen=True)
class Pictures(fragmenta.Environment):
    """Rows of pixels that change with every step, for next to no time; not images, which take long to learn from."""

    max_steps: int = 200

    @property
    def observation_space(self) -> fragmenta.Box:
        return fragmenta.Box(0, 255, (PIXELS,), "uint8")

    @property
    def action_space(self) -> fragmenta.Discrete:
        return fragmenta.Discrete(4)

    def initial(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 1, 1000)

    def observe(self, state: jax.Array) -> jax.Array:
        return (jnp.arange(PIXELS) * state % 251).astype(jnp.uint8)

    def advance(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return state + 1 + action, action.astype(jnp.float32), jnp.zeros((), bool)


def algorithm(gigabytes: float) -> fragmenta.DQN:
    """Learns little at a time, so that a copy of the replay would show."""
    steps = round(gigabytes * 1e9 / PIXELS) // 8 * 8
    return fragmenta.DQN(
        num_envs=8, horizon=4, buffer_size=steps, batch_size=8, updates=1, learning_starts=64, hidden=(16,)
    )


def setup(gigabytes: float, policy: str, engine: str) -> Setup:
    chosen, env = algorithm(gigabytes), Stack(Pictures(), 4)
    apart = engine != "local"
    devices = ("cpu:0", "cpu:1", "cpu:2") if apart else ("cpu:0",)
    cluster = fragmenta.Cluster(devices, 1, apart=apart)
    plan = fragmenta.project(fragmenta.trace(chosen, env), policy, cluster, merge=False)
    return Setup(plan, chosen, env, policy, cluster, merge=False)


class Side:
    """A running engine with a replay of some size."""

    def __init__(self, gigabytes: float, policy: str, engine: str = "local", **changes: Any) -> None:
        chosen = dataclasses.replace(setup(gigabytes, policy, engine), **changes)
        self.engine = ENGINES[engine](chosen)
        large = in_place(chosen.plan.graph)
        initial = initial_state(chosen.algorithm, chosen.env, jax.random.key(0), in_place=large)
        leaves, self.structure = jax.tree.flatten(initial)
        self.engine.begin(leaves)
        self.seconds(max(4, -(-chosen.algorithm.rows // chosen.algorithm.horizon)))  # until it is full

    def seconds(self, iterations: int) -> float:
        """Per iteration."""
        began = time.monotonic()
        for _ in self.engine.run(iterations):
            pass
        return (time.monotonic() - began) / iterations


def speed(small: float, large: float, rounds: int, iterations: int) -> None:
    pairs, sides = [], [Side(size, "single_learner_coarse") for size in (small, large)]
    with sides[0].engine, sides[1].engine:
        for i in range(rounds):
            order = (0, 1) if i % 2 else (1, 0)
            times = {side: sides[side].seconds(iterations) for side in order}
            pairs.append((times[0], times[1]))
    ratios = sorted(first / second for first, second in pairs)
    before, after = (statistics.median(each) * 1e3 for each in zip(*pairs, strict=True))
    figure = f"{statistics.median(ratios):.3f}x ({ratios[0]:.3f} to {ratios[-1]:.3f} in {rounds} rounds)"
    print(f"{before:.2f} ms per iteration with {small:g} GB, {after:.2f} with {large:g}: speed {figure}", flush=True)


def peak(gigabytes: float, policy: str) -> float:
    """The largest resident size, in GB, of a process that trains with such a replay."""
    command = [sys.executable, __file__, "--peak-of", str(gigabytes), "--policy", policy]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def saving(gigabytes: float) -> None:
    side = Side(gigabytes, "single_learner_coarse")
    with side.engine, tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        arrays = to_arrays(jax.tree.unflatten(side.structure, side.engine.state()))
        copied = time.monotonic()
        checkpoints = CheckpointFolder(Path(folder))
        checkpoints.save(Checkpoint(arrays, 1, 1))
        written = time.monotonic()
        read = checkpoints.load("0000000001").arrays
        ended = time.monotonic()
        assert all(np.array_equal(arrays[name], read[name]) for name in arrays)
    times = f"copied in {copied - began:.1f} s, written in {written - copied:.1f} s, read in {ended - written:.1f} s"
    print(f"a checkpoint with {gigabytes:g} GB of frames: {times}", flush=True)


def recovery(gigabytes: float, policy: str, victim: str) -> None:
    pids: dict[str, int] = {}

    def placed(workers: Sequence[ProcessLocation]) -> None:
        pids.update({worker.worker: worker.pid for worker in workers})

    side = Side(gigabytes, policy, "processes", placed=placed)
    with side.engine:
        before = side.seconds(40)
        os.kill(pids[victim], signal.SIGKILL)
        began = time.monotonic()
        side.seconds(1)
        back = time.monotonic() - began
        times = f"back after {back:.1f} s, {before * 1e3:.1f} ms per iteration before and"
        name = f"{gigabytes:g} GB under {policy}, {victim} killed"
        print(f"{name}: {times} {side.seconds(40) * 1e3:.1f} after", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=float, default=0.04, help="GB")
    parser.add_argument("--large", type=float, default=4.0, help="GB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--peak-of", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--policy", default="single_learner_coarse", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of:
        with Side(options.peak_of, options.policy).engine:
            status = Path("/proc/self/status").read_text()
            print(int(status.partition("VmHWM:")[2].split()[0]) / 1e6)
        return
    speed(options.small, options.large, options.rounds, options.iterations)
    for policy in ("single_learner_coarse", "replay_async"):
        used = peak(options.large, policy) - peak(options.small, policy)
        ratio = used / (options.large - options.small)
        print(f"memory under {policy}: {used:.2f} GB more, {ratio:.2f}x the frames", flush=True)
    saving(options.large)
    for size in (options.small, options.large):
        for policy, victim in (("single_learner_coarse", "learner"), ("replay", "learner"), ("replay", "replay")):
            recovery(size, policy, victim)


if __name__ == "__main__":
    main()
