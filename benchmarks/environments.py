"""Environment steps per second of PPO on environments on the host, compared with its peers in one run.

The same work on every side: 64 environments, 64 x 64 tanh, 128 steps, 4 epochs, 4 minibatches. Bare stepping with
random actions on both cores is about the upper bound for a trainer, so it is compared with ours at one epoch: once as
a plain loop that discards observations, once with Gymnasium's vector environment, which stacks them into one array.
Sides take turns, each in a separate process, with the compared ones in succession; a ratio is the median over rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sides import adopt_orphans, ask, ratio, take_turns

HERE = Path(__file__).parent
PEERS = ["stable-baselines3", "ray[rllib]", "gymnasium[mujoco]"]
PHYSICS = ("mujoco",)
SHOWN = ("jax", "stable-baselines3", "ray", "torch", "gymnasium", "mujoco", "envpool")
START_UP = 240.0  # seconds that a side may take in addition to its measurement

ENVS = ("gymnasium:HalfCheetah-v5", "gymnasium:CartPole-v1", "envpool:HalfCheetah-v5")
"""Peers always step Gymnasium's environment of the same name, because that is what they support."""

GOALS = {
    "gymnasium": {"SB3": 1.6, "RLlib": 2.0, "bare stepping": 0.85, "vector stepping": 0.85},
    "envpool": {"SB3": 2.5, "RLlib": 3.0, "bare stepping": 0.85},
}
OURS = {
    "SB3": "ours, 4 epochs",
    "RLlib": "ours, 4 epochs",
    "bare stepping": "ours, 1 epoch",
    "vector stepping": "ours, 1 epoch",
}
"""The side of ours that each other side is compared with."""

Variants = tuple[tuple[str, ...], ...]
# The first round tries all variants; later rounds repeat the best.
RLLIB: Variants = (("--runners", "0"), ("--runners", "1"), ("--runners", "2"))
STEPPING: dict[str, Variants] = {
    "gymnasium": ((),),
    "envpool": (("--threads", "2"), ("--pinned",), ("--batch", "32"), ("--threads", "3")),
}
SB3: Variants = (("--vector", "dummy"), ("--threads", "2"), ("--vector", "subproc"))
"""Only the first by default: one thread was fastest, and 64 processes take minutes to start."""


def peers_python() -> Path:
    """The interpreter of the virtual environment of the peers, which is created on first use."""
    folder = HERE / ".venv-peers"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        # The same physics version on both sides, if ours is installed; gymnasium is in the version that RLlib requires.
        same = [f"{name}=={version}" for name, version in versions(sys.executable).items() if name in PHYSICS]
        subprocess.run([folder / "bin/pip", "install", "--quiet", "--quiet", *PEERS, *same], check=True)
        (folder / ".ready").touch()
    return folder / "bin/python"


def versions(python: Path | str) -> dict[str, str]:
    program = (
        "import importlib.metadata as m, json, sys; have = {d.name.lower().replace('_', '-'): d.version "
        "for d in m.distributions()}; print(json.dumps({n: have[n] for n in sys.argv[1:] if n in have}))"
    )
    return json.loads(subprocess.run([python, "-c", program, *SHOWN], check=True, capture_output=True).stdout)


def fragmenta_rate(env: str, epochs: int, seconds: float = 20.0, *flags: str) -> float:
    command = [
        sys.executable,
        HERE / "fragmenta_side.py",
        env,
        "--epochs",
        str(epochs),
        "--seconds",
        str(seconds),
        *flags,
    ]
    return ask(command, 4 * seconds + START_UP)["rate"]


class Peer:
    """Another side: measures the best of its variants."""

    def __init__(self, script: str, env: str, variants: Variants, seconds: float, python: str | Path) -> None:
        self.script, self.env, self.seconds, self.python = script, env, seconds, python
        self.variants = variants

    def __call__(self) -> float:
        rates = {variant: self.rate(variant) for variant in self.variants}
        best = max(rates, key=lambda variant: rates[variant])
        if len(rates) > 1:
            print("  ", "; ".join(f"{' '.join(variant)}: {rate:,.0f}" for variant, rate in rates.items()))
        self.variants = (best,)
        return rates[best]

    def rate(self, variant: tuple[str, ...]) -> float:
        # torch's backend fixes its number of threads at start-up, so single-threaded variants set it beforehand.
        threads = variant[1] if variant[:1] == ("--threads",) else "1"
        command = [self.python, HERE / self.script, self.env, "--seconds", str(self.seconds), *variant]
        return ask(command, 4 * self.seconds + START_UP, OMP_NUM_THREADS=threads)["rate"]


def sides_of(env: str, every: bool, seconds: float) -> dict[tuple[str, str], Callable[[], float]]:
    """The sides for an environment, by library and the environment it steps; two environments may share a side."""

    package, _, peer_env = env.partition(":")
    python = peers_python()
    sides: dict[tuple[str, str], Callable[[], float]] = {
        ("RLlib", peer_env): Peer("rllib_peer.py", peer_env, RLLIB, seconds, python),
        ("ours, 4 epochs", env): partial(fragmenta_rate, env, 4, seconds),
        ("SB3", peer_env): Peer("sb3_peer.py", peer_env, SB3 if every else SB3[:1], seconds, python),
    }
    if package == "gymnasium":
        vector = Peer("bare_stepping.py", env, (("--vector",),), seconds, sys.executable)
        sides["vector stepping", env] = vector
    sides["ours, 1 epoch", env] = partial(fragmenta_rate, env, 1, seconds)
    # Bare stepping of the same packages that we step.
    sides["bare stepping", env] = Peer("bare_stepping.py", env, STEPPING[package], seconds, sys.executable)
    return sides


def compare(env: str, rates: dict[tuple[str, str], list[float]]) -> list[dict]:
    """The ratio of our rate to that of each other side, with the goals."""
    package, _, name = env.partition(":")
    ratios = []
    for other, goal in GOALS[package].items():
        peer = (other, env if "stepping" in other else name)
        if peer in rates and (OURS[other], env) in rates:
            measured = ratio(rates[OURS[other], env], rates[peer])
            ratios.append({"env": env, "ours": OURS[other], "other": other, "ratio": measured, "goal": goal})
    return ratios


def report(envs: list[str], rates: dict[tuple[str, str], list[float]]) -> list[dict]:
    print(f"\n{'side':<16}{'environment':<28}{'steps/s':>10}   all rounds")
    for (side, env), each in rates.items():
        rounds = " ".join(f"{rate:,.0f}" for rate in each)
        print(f"{side:<16}{env:<28}{statistics.median(each):>10,.0f}   {rounds}")
    ratios = [one for env in envs for one in compare(env, rates)]
    print(f"\n{'environment':<28}{'ratio':<32}{'is':>8}{'goal':>8}")
    for one in ratios:
        verdict = "ok" if one["ratio"] >= one["goal"] else "below"
        title = f"{one['ours']} / {one['other']}"
        print(f"{one['env']:<28}{title:<32}{one['ratio']:>7.2f}x{one['goal']:>7.2f}x  {verdict}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="that each side measures in each round")
    parser.add_argument("--without", nargs="+", default=[], choices=[*OURS, *OURS.values()], help="sides to leave out")
    parser.add_argument("--all", action="store_true", help="the slower ways to run Stable-Baselines3, too")
    parser.add_argument("--out", type=Path, help="a JSON file for the rates and ratios")
    options = parser.parse_args()
    adopt_orphans()
    installed = {"ours": versions(sys.executable), "peers": versions(peers_python())}
    for python, packages in installed.items():
        print(f"{python}: {', '.join(f'{name} {version}' for name, version in packages.items())}")
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, median of {options.rounds} rounds of {options.seconds:g} s", flush=True)
    sides: dict[tuple[str, str], Callable[[], float]] = {}
    for env in options.envs:
        sides |= sides_of(env, options.all, options.seconds)
    sides = {key: side for key, side in sides.items() if key[0] not in options.without}
    rates = take_turns(sides, options.rounds)
    ratios = report(options.envs, rates)
    if options.out:
        chosen = {key: side.variants[0] for key, side in sides.items() if isinstance(side, Peer)}
        named_rates = [
            {"side": key[0], "env": key[1], "rates": each, "variant": " ".join(chosen.get(key, ()))}
            for key, each in rates.items()
        ]
        settings = {"cores": cores, "rounds": options.rounds, "seconds": options.seconds, "versions": installed}
        options.out.write_text(json.dumps({**settings, "rates": named_rates, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
