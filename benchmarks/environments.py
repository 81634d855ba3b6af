"""Environment steps per second of PPO on environments that run on the host, side by side with its peers in one run.

The same work on every side: 64 environments, 64 x 64 tanh, 128 steps, 4 epochs, 4 minibatches. Bare stepping, random
actions on both cores, is about the most that a trainer could reach, so ours is compared with it at one epoch. Sides
take turns, each in a process of its own; figures are medians over the rounds.
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

from sides import adopt_orphans, ask

HERE = Path(__file__).parent
PEERS = ["stable-baselines3", "ray[rllib]", "gymnasium[mujoco]", "envpool"]
SHOWN = ("jax", "stable-baselines3", "ray", "torch", "gymnasium", "mujoco", "envpool")
START_UP = 240.0  # seconds that a side may take beyond those that it measures

ENVS = ("gymnasium:HalfCheetah-v5", "gymnasium:CartPole-v1", "envpool:HalfCheetah-v4")
PEERS_ENV = {"envpool:HalfCheetah-v4": "HalfCheetah-v5"}
"""Peers step gymnasium's environments, of the same name but for these: it is what they support."""

GOALS = {
    "gymnasium": {"SB3": 1.6, "RLlib": 2.0, "bare stepping": 0.85},
    "envpool": {"SB3": 2.5, "RLlib": 3.0, "bare stepping": 0.85},
}
OURS = {"SB3": "ours, 4 epochs", "RLlib": "ours, 4 epochs", "bare stepping": "ours, 1 epoch"}
"""Which of our figures is held against whom."""

Variants = tuple[tuple[str, ...], ...]
# The first of each is what is fastest on two cores; `--all` measures the others, too, and takes the best of them.
SB3: Variants = (("--threads", "1"), ("--threads", "2"), ("--vector", "subproc"))
RLLIB: Variants = (("--runners", "0"), ("--runners", "1"), ("--runners", "2"))
STEPPING: dict[str, Variants] = {
    "gymnasium": ((),),
    "envpool": ((), ("--pinned",), ("--batch", "32"), ("--threads", "3")),
}


def peers_python() -> Path:
    """The interpreter of the virtual environment that the peers share, made at first use."""
    folder = HERE / ".venv-peers"
    if not (folder / ".ready").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", "--quiet", *PEERS], check=True)
        (folder / ".ready").touch()
    return folder / "bin/python"


def versions(python: Path | str) -> dict[str, str]:
    program = (
        "import importlib.metadata as m, json, sys; have = {d.name.lower().replace('_', '-'): d.version "
        "for d in m.distributions()}; print(json.dumps({n: have[n] for n in sys.argv[1:] if n in have}))"
    )
    return json.loads(subprocess.run([python, "-c", program, *SHOWN], check=True, capture_output=True).stdout)


def fragmenta_rate(env: str, epochs: int, seconds: float = 20.0) -> float:
    command = [sys.executable, HERE / "fragmenta_side.py", env, "--epochs", str(epochs), "--seconds", str(seconds)]
    return ask(command, 4 * seconds + START_UP)["rate"]


def peer_rate(script: str, env: str, variants: Variants, seconds: float) -> float:
    """The best of a peer's variants."""
    rates = []
    for variant in variants:
        # The library under torch fixes its number of threads when it starts, so one that is not to use more is told.
        threads = dict(zip(variant[::2], variant[1::2], strict=False)).get("--threads", "1")
        command = [peers_python(), HERE / script, env, "--seconds", str(seconds), *variant]
        rates.append(ask(command, 4 * seconds + START_UP, OMP_NUM_THREADS=threads)["rate"])
    return max(rates)


def sides_of(env: str, every: bool, seconds: float) -> dict[tuple[str, str], Callable[[], float]]:
    """Who takes part for an environment, by who and what it steps; two environments may share a side."""

    def kept(variants: Variants) -> Variants:
        return variants if every else variants[:1]

    theirs = peers_env(env)
    package = env.partition(":")[0]
    return {
        ("SB3", theirs): partial(peer_rate, "sb3_peer.py", theirs, kept(SB3), seconds),
        ("RLlib", theirs): partial(peer_rate, "rllib_peer.py", theirs, kept(RLLIB), seconds),
        ("bare stepping", env): partial(peer_rate, "bare_stepping.py", env, kept(STEPPING[package]), seconds),
        ("ours, 4 epochs", env): partial(fragmenta_rate, env, 4, seconds),
        ("ours, 1 epoch", env): partial(fragmenta_rate, env, 1, seconds),
    }


def peers_env(env: str) -> str:
    return PEERS_ENV.get(env, env.partition(":")[2])


def compare(env: str, rates: dict[tuple[str, str], list[float]]) -> list[dict]:
    """Our ratios to each other side, with the goals."""
    ratios = []
    for other, goal in GOALS[env.partition(":")[0]].items():
        theirs = (other, env if other == "bare stepping" else peers_env(env))
        if theirs in rates and (OURS[other], env) in rates:
            ratio = statistics.median(rates[OURS[other], env]) / statistics.median(rates[theirs])
            ratios.append({"env": env, "ours": OURS[other], "other": other, "ratio": ratio, "goal": goal})
    return ratios


def report(envs: list[str], rates: dict[tuple[str, str], list[float]]) -> list[dict]:
    print(f"\n{'side':<16}{'environment':<28}{'steps/s':>10}   all rounds")
    for (side, env), each in rates.items():
        rounds = " ".join(f"{rate:,.0f}" for rate in each)
        print(f"{side:<16}{env:<28}{statistics.median(each):>10,.0f}   {rounds}")
    ratios = [ratio for env in envs for ratio in compare(env, rates)]
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
    parser.add_argument("--all", action="store_true", help="every variant of the peers, not the one known to be best")
    parser.add_argument("--out", type=Path, help="a JSON file for the rates and ratios")
    options = parser.parse_args()
    adopt_orphans()
    installed = {"ours": versions(sys.executable), "peers": versions(peers_python())}
    for who, have in installed.items():
        print(f"{who}: {', '.join(f'{name} {version}' for name, version in have.items())}")
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, median of {options.rounds} rounds of {options.seconds:g} s", flush=True)
    sides: dict[tuple[str, str], Callable[[], float]] = {}
    for env in options.envs:
        sides |= sides_of(env, options.all, options.seconds)
    sides = {key: side for key, side in sides.items() if key[0] not in options.without}
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in sides}
    for i in range(options.rounds):
        for key, side in sides.items():
            rates[key].append(side())
            print(f"round {i + 1}: {' '.join(key)}: {rates[key][-1]:,.0f}", flush=True)
    ratios = report(options.envs, rates)
    if options.out:
        named = [{"side": side, "env": env, "rates": each} for (side, env), each in rates.items()]
        settings = {"cores": cores, "rounds": options.rounds, "seconds": options.seconds, "versions": installed}
        options.out.write_text(json.dumps({**settings, "rates": named, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
