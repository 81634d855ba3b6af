"""Environment steps per second of PPO on CartPole, compared with rejax in one run, and under our distribution policies.

The same work on both sides: 64 x 64 tanh, 128 steps, 4 epochs, 4 minibatches. Sides take turns; figures are medians.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import jax

import fragmenta
from fragmenta.engines import LocalEngine

HERE = Path(__file__).parent
ROUNDS = 5
PEER = ["rejax==0.1.3", "gymnax<1", f"jax=={jax.__version__}", f"jaxlib=={jax.__version__}"]


def start_peer() -> subprocess.Popen:
    folder = HERE / f".venv-rejax-{jax.__version__}"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", "--quiet", *PEER], check=True)
        (folder / ".ready").touch()
    command = [folder / "bin/python", HERE / "rejax_peer.py"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask_peer(peer: subprocess.Popen, num_envs: int, short: int, long: int) -> float:
    assert peer.stdin is not None
    assert peer.stdout is not None
    peer.stdin.write(f"{num_envs} {short} {long}\n")
    peer.stdin.flush()
    return float(peer.stdout.readline())


class Ours:
    """A run that can be continued for some iterations at a time."""

    def __init__(self, num_envs: int, policy: str = "fused", merge: bool = True, budget: int = 10_000) -> None:
        self.algorithm = fragmenta.PPO(num_envs=num_envs, minibatches=4, total_steps=num_envs * 128 * budget)
        env = fragmenta.make("CartPole-v1")
        plan = fragmenta.project(fragmenta.trace(self.algorithm, env), policy, fragmenta.Cluster(("cpu:0",)), merge)
        state = jax.tree.leaves(jax.jit(lambda key: self.algorithm.init(env, key))(jax.random.key(0)))
        self.engine = LocalEngine(plan)
        self.engine.begin(state)
        self.state, self.plan = state, plan

    def rate(self, iterations: int) -> float:
        """Steps per second over the next iterations, without compile time."""
        begin = time.perf_counter()
        for report in self.engine.run(iterations):
            jax.device_get(report.metrics)
        return iterations * self.algorithm.steps_per_iteration / (time.perf_counter() - begin)


def main() -> None:
    print(f"jax {jax.__version__}, CartPole-v1, PPO, two sides in turn, median of {ROUNDS}")
    peer = start_peer()
    for num_envs, short, long in ((64, 8, 48), (2_048, 1, 4)):
        ours = Ours(num_envs)
        pairs = [(ours.rate(long - short), ask_peer(peer, num_envs, short, long)) for _ in range(ROUNDS)]
        our_rate, peer_rate = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(
            f"{num_envs:>5} envs: ours {our_rate:,.0f} steps/s, rejax {peer_rate:,.0f}: {our_rate / peer_rate:.2f}x",
            flush=True,
        )
    peer.kill()
    for num_envs, iterations in ((64, 30), (2_048, 3)):
        fused_run = Ours(num_envs)
        coarse_run = Ours(num_envs, "single_learner_coarse", merge=False)
        fine_run = Ours(num_envs, "single_learner_fine", merge=False)
        rates = [[side.rate(iterations) for side in (fused_run, coarse_run, fine_run)] for _ in range(ROUNDS)]
        whole, coarse, steps = (statistics.median(side) for side in zip(*rates, strict=True))
        print(
            f"{num_envs:>5} envs, unmerged: fused {whole:,.0f} steps/s, single_learner_coarse {coarse:,.0f} "
            f"({coarse / whole:.2f}x), single_learner_fine {steps:,.0f} ({steps / whole:.2f}x)",
            flush=True,
        )
    # Nothing grows with the number of iterations: a long run is as fast as a fresh one.
    old = Ours(64)
    old.rate(400)
    ages = [old.rate(20) / Ours(64).rate(20) for _ in range(9)]
    print(f"   64 envs: after 400 iterations a run is {statistics.median(ages):.2f}x as fast as a fresh one")


if __name__ == "__main__":
    main()
