"""What Ray costs and gains: PPO on its engine, side by side with RLlib's and with our own local engine.

With RLlib both have two workers that step 64 environments on one machine with two cores; with our local engine both
have one actor. Sides take turns, each in a process of its own; figures are medians over the rounds.
"""

import argparse
import statistics
from functools import partial

from environments import Peer, fragmenta_rate, peers_python
from sides import adopt_orphans

ENVS = ("gymnasium:CartPole-v1", "gymnasium:HalfCheetah-v5")
GOAL, GOAL_OF_ONE_ACTOR = 2.5, 0.85


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="that each side measures in each round")
    options = parser.parse_args()
    adopt_orphans()
    seconds, python = options.seconds, peers_python()
    sides = {}
    for env in ENVS:
        sides["RLlib, 2 runners", env] = Peer(
            "rllib_peer.py", env.partition(":")[2], (("--runners", "2"),), seconds, python
        )
        sides["ours on Ray, 2 actors", env] = partial(
            fragmenta_rate, env, 4, seconds, "--engine", "ray", "--actors", "2"
        )
    for engine in ("local", "ray"):
        sides[f"ours, {engine}, 1 actor", ENVS[1]] = partial(
            fragmenta_rate, ENVS[1], 4, seconds, "--engine", engine, "--actors", "1"
        )
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in sides}
    for i in range(options.rounds):
        for key, side in sides.items():
            rates[key].append(side())
            print(f"round {i + 1}: {' '.join(key)}: {rates[key][-1]:,.0f}", flush=True)
    middle = {key: statistics.median(each) for key, each in rates.items()}
    print()
    for (side, env), rate in middle.items():
        print(f"{side:<24}{env:<28}{rate:>10,.0f} steps/s")
    for env in ENVS:
        ratio = middle["ours on Ray, 2 actors", env] / middle["RLlib, 2 runners", env]
        print(f"{env:<28} ours / RLlib {ratio:.2f}x (goal {GOAL}x)")
    ratio = middle["ours, ray, 1 actor", ENVS[1]] / middle["ours, local, 1 actor", ENVS[1]]
    print(f"{ENVS[1]:<28} Ray / local, one actor {ratio:.2f}x (goal {GOAL_OF_ONE_ACTOR}x)")


if __name__ == "__main__":
    main()
