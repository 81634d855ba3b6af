"""PPO on the Ray engine, compared with RLlib's PPO and with our local engine.

Against RLlib, both sides have two workers that step 64 environments on one machine with two cores; against our local
engine, both have one actor. Sides take turns, each in a separate process; a ratio is the median over the rounds.
"""

import argparse
import statistics
from functools import partial

from environments import Peer, fragmenta_rate, peers_python
from sides import adopt_orphans, ratio, take_turns

ENVS = ("gymnasium:CartPole-v1", "gymnasium:HalfCheetah-v5")
GOAL, GOAL_OF_ONE_ACTOR = 2.5, 0.85


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("RLlib", "local"), help="compare with one of them, not with both")
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
    one_actor = [("ours, ray, 1 actor", ENVS[1]), ("ours, local, 1 actor", ENVS[1])]
    if options.only:
        sides = {key: side for key, side in sides.items() if (key in one_actor) == (options.only == "local")}
    rates = take_turns(sides, options.rounds)
    print()
    for (side, env), each in rates.items():
        rounds = " ".join(f"{rate:,.0f}" for rate in each)
        print(f"{side:<24}{env:<28}{statistics.median(each):>10,.0f} steps/s   {rounds}")
    pairs = {env: [("ours on Ray, 2 actors", env), ("RLlib, 2 runners", env)] for env in ENVS}
    for env, (ours, peer) in pairs.items():
        if ours in rates:
            print(f"{env:<28} ours / RLlib {ratio(rates[ours], rates[peer]):.2f}x (goal {GOAL}x)")
    ray, local = one_actor
    if ray in rates:
        overhead = ratio(rates[ray], rates[local])
        print(f"{ENVS[1]:<28} Ray / local, one actor {overhead:.2f}x (goal {GOAL_OF_ONE_ACTOR}x)")


if __name__ == "__main__":
    main()
